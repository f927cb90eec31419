"""Model cards: what the person who uses trained weights has to know about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dumlp_pin.data import registry
from dumlp_pin.export.command import EXPECTS
from dumlp_pin.models.registry import describe_model
from dumlp_pin.training.results import mean_and_spread

Weights = Literal["float16", "float32"]
PROTOCOLS = {"last": "last epoch", "best_on_test": "best epoch on test"}

# What was not tried, by data set.
LIMITS = {
    "digits": "Digits of 8 x 8 pixels, centred and upright, written by 13 people.",
    "mnist": "White digits of 28 x 28 pixels on black, centred and upright as those of MNIST are.",
    "modelnet40": "Evenly sampled CAD models, whole, in the data set's pose, with normals that "
    "point outwards. Scans, other poses and shapes without normals were not trained on.",
    "shapenetpart": "Evenly sampled CAD models, whole, in the data set's pose, of a category that "
    "is told. Scans and other poses were not trained on.",
    "scannet": "Rooms scanned as ScanNet was, cut into upright columns.",
    "celeba": "Sets of ten faces, of which exactly one lacks what the others share.",
}


@dataclass(frozen=True)
class Card:
    """What is known about weights beyond the run they are from; it stands in their result.json."""

    weights: Weights
    metrics: dict[str, float]  # of these weights in float32 arithmetic: what `evaluate` prints
    seeds: dict[str, list[float]]  # protocol -> the headline of each seed of the recipe
    notes: tuple[str, ...] = ()  # more to know, such as where the data differed


def card_text(name: str, result: Mapping[str, Any], card: Card) -> str:
    """The card in Markdown, from the result of the run and what stands in `card`."""
    recipe, data = result["recipe"], registry.get(result["recipe"]["data"]["name"])
    about = {
        "model": f"`{recipe['model']['name']}`: {describe_model(recipe['model']['name'])}",
        "task": f"{data.task}, {len(result['class_names'])} classes",
        "parameters": f"{result['parameters']:,}, matrices kept in {card.weights}",
        "input": EXPECTS[data.name],
        "data": f"[{data.name}]({data.homepage}), {' and '.join(recipe['data']['train'])}",
        "licence of the data": data.licence,
        "recipe": f"`{recipe['name']}`, whole in [result.json](result.json)",
        "seed": f"{result['seed']}{_among(card)}",
        "trained": f"{result['seconds']:,.0f} s on {result['device']}, "
        f"PyTorch {result['torch']}" + (f", commit {result['commit']}" if result["commit"] else ""),
    }
    limits = [
        LIMITS[data.name],
        "It answers with one of its classes, whatever it is given.",
        *card.notes,
    ]
    return "\n".join(
        (
            f"# {name}\n",
            "```python",
            "from dumlp_pin import load_pretrained\n",
            f'model = load_pretrained("{name}")',
            "```\n",
            *_table(("", ""), about.items()),
            "\nThe code is under the MIT licence. The weights were made from data under a licence",
            "of its own: do with them nothing that it forbids.\n",
            f"## Scores on {result['scored_on']}, %\n",
            *_table(*_scores(result, card)),
            "\nThe weights' own scores come out again to the last digit with\n",
            "```sh",
            f"dumlp-pin evaluate {name} --data {data.name}",
            "```\n",
            "The last epoch is what the recipe gives when nobody looks at the test sets before its",
            "end; the best epoch on test is chosen by the score itself, as in the paper.\n",
            "## Limits\n",
            *(f"- {limit}" for limit in limits),
            "",
        )
    )


def _scores(
    result: Mapping[str, Any], card: Card
) -> tuple[tuple[str, ...], Iterable[tuple[str, ...]]]:
    """The columns' names and the rows: one a metric."""
    several = len(card.seeds["last"]) > 1
    header = ["metric", "these weights"]
    for protocol, title in PROTOCOLS.items():
        header.append(f"their run, {title} ({result[protocol]['epoch']})")
    if several:
        count = len(card.seeds["last"])
        header += [f"{count} seeds, {title}" for title in PROTOCOLS.values()]
    rows = []
    for metric, value in card.metrics.items():
        row = [metric, f"{100 * value:.2f}"]
        row += [f"{100 * result[protocol][metric]:.2f}" for protocol in PROTOCOLS]
        if several:
            is_headline = metric == result["headline"]
            row += [_spread(card.seeds[each]) if is_headline else "" for each in PROTOCOLS]
        rows.append(tuple(row))
    return tuple(header), rows


def _spread(values: Sequence[float]) -> str:
    mean, spread = mean_and_spread([100 * value for value in values])
    return f"{mean:.2f} ± {spread:.2f}"


def _among(card: Card) -> str:
    count = len(card.seeds["last"])
    return f", the median of {count} by its last epoch" if count > 1 else ", the only one"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row)} |"
