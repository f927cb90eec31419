"""From a finished run to weights that ship: chosen, halved where that costs nothing, described."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dumlp_pin._files import check_folder, save_tensors, written_whole
from dumlp_pin.cards import PROTOCOLS, Card, Weights, card_text
from dumlp_pin.pretrained import PREFIX, Pretrained, find_pretrained, shipped_folder
from dumlp_pin.training.evaluate import evaluate
from dumlp_pin.training.results import find_results, plain, write_json

NAME = re.compile(rf"{PREFIX}[a-z0-9_]+(\.[a-z0-9_]+)?")
NOISE = 0.0005  # of a score: less than the seeds of any table of the paper differ by
# A run may have been scored in TF32 or bfloat16; more than this is not rounding.
ROUNDING = 0.005


def ship(
    run: Path,
    name: str,
    notes: Sequence[str] = (),
    out: Path | None = None,
    device: str | torch.device = "cpu",
) -> Path:
    """Make `name` a model that `load_pretrained` knows, from a run or the median of its seeds.

    `run` is the folder of one run, or one with a folder for each seed. A name may have a tag:
    modelnet40.plus. What comes out is a folder below `out`, the package's own without it, with
    model.safetensors, result.json and the card, README.md. Scores are measured anew, in float32.
    """
    name = name if name.startswith(PREFIX) else PREFIX + name
    if not NAME.fullmatch(name):
        raise ValueError(f"a name is lower-case words and, after a dot, a tag; got {name!r}")
    folder = (out or shipped_folder()) / name
    check_folder(folder)
    runs = _runs(run)
    found = _median(runs)
    headline = found.result["headline"]
    seeds = {protocol: [each.result[protocol][headline] for each in runs] for protocol in PROTOCOLS}
    cards = {
        weights: Card(weights, _measure(found, weights, device), seeds, tuple(notes))
        for weights in ("float32", "float16")
    }
    full, half = (cards[weights].metrics[headline] for weights in cards)
    _check_same_data(found, full)
    card = cards["float16" if abs(half - full) <= NOISE else "float32"]
    _write(folder, found, card)
    with written_whole(folder / "README.md") as draft:
        draft.write_text(card_text(name, found.result, card), encoding="utf-8")
    return folder


def _runs(folder: Path) -> list[Pretrained]:
    """The run of a folder, or its runs with different seeds of one recipe."""
    if (folder / "result.json").is_file():
        return [find_pretrained(folder)]
    runs = [find_pretrained(path.parent) for path in find_results(folder)]
    if not runs:
        raise FileNotFoundError(f"{folder} holds no result.json, which a training run leaves")
    for run in runs:
        if run.recipe != runs[0].recipe:
            raise ValueError(f"{runs[0].folder} and {run.folder} are runs of different recipes")
    if len({run.result["seed"] for run in runs}) < len(runs):
        raise ValueError(f"{folder} holds a seed twice")
    return runs


def _median(runs: Sequence[Pretrained]) -> Pretrained:
    """By the last epoch: nobody chose the best by a look at the test sets.

    Of an even number, the lower of the two in the middle.
    """
    ranked = sorted(runs, key=lambda run: run.result["last"][run.result["headline"]])
    return ranked[(len(ranked) - 1) // 2]


def _measure(found: Pretrained, weights: Weights, device: str | torch.device) -> dict[str, float]:
    """The scores of such weights as they will be read back from their file."""
    with tempfile.TemporaryDirectory() as draft:
        _write(Path(draft), found, Card(weights, {}, {}))
        return evaluate(find_pretrained(draft), device=device)


def _write(folder: Path, found: Pretrained, card: Card) -> None:
    state = found.model().state_dict()
    if card.weights == "float16":
        state = {name: _halved(value) for name, value in state.items()}
    save_tensors(folder / "model.safetensors", state, {"model": found.recipe.model.name})
    result: dict[str, Any] = found.result | {"card": plain(asdict(card))}
    write_json(folder / "result.json", result)


def _halved(value: Tensor) -> Tensor:
    """Matrices in half precision; biases and norms are few, and a variance can be too small."""
    return value.half() if value.is_floating_point() and value.ndim > 1 else value


def _check_same_data(found: Pretrained, measured: float) -> None:
    headline = found.result["headline"]
    said = found.result["last"][headline]
    if abs(measured - said) > ROUNDING:
        raise ValueError(
            f"{found.folder} scores {measured:.2%} here, its result says {said:.2%}: "
            "are these the sets that it was scored on?"
        )
