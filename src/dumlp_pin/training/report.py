"""Every table of the paper beside the results of runs here, as a page: `dumlp-pin report`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dumlp_pin._errors import nearest
from dumlp_pin.pretrained import find_pretrained, list_pretrained
from dumlp_pin.training.differences import Scores, difference, first, order
from dumlp_pin.training.paper import TABLES, Row, Table
from dumlp_pin.training.recipe import Recipe, shipped_recipes
from dumlp_pin.training.reproduce import (
    Run,
    differences,
    duration,
    load_runs,
    macs_of,
    printed,
    run_command,
    runs_of,
    score_text,
    scores_of,
    title_of,
    train_command,
)
from dumlp_pin.training.results import find_results, mean_and_spread
from dumlp_pin.training.run import FAILED
from dumlp_pin.training.shortened import is_shortened, shortened

REMARKS = "remarks.toml"  # beside the results; see docs/recipes.md
COMPLEXITY = "complexity.json"  # beside the results, by `dumlp-pin reproduce table5 --out`
ROBUSTNESS = "robustness"  # a folder beside the results, too
ALL_ROWS = "all"  # the key of a remark on a table as a whole

INTRODUCTION = """\
# Reproduction

<!-- Made by `{command}`: change what it is made from. -->

Every table of the paper beside the runs below `{folder}`. **Last epoch** is what a recipe gives
when nobody looks at the test sets before its end; it is the number that counts here. **Best on
test** is the best epoch by test score, as the paper reports it, so it is what compares with the
paper. Ours are the mean and the standard deviation over seeds; *time* is that of one seed, scoring
every epoch included, and where several seeds shared a GPU it is the time that all of them took
together.

A difference is that of *best on test* from the paper. The noise is two standard errors of it, from
the spread of both where both are known, and half of the last digit that the paper prints. The
spread of a row is that of its seeds or, where that is larger or there is one seed, that of all rows
of the table together. Two rows differ by more than noise if their means do by more than two
standard errors; their order is judged by *best on test*, as the paper's is, and which row is first
by the last epoch.
"""
SCANNET = """\
ScanNet needs a signed agreement, so nothing was run on it here; whoever has the data fills a row by
its command. That the way from its published files to a score works is shown on generated rooms in
the same format:

```sh
python -m pytest tests/training/test_scannet.py
```
"""
NOTES = {"table9": SCANNET}

PAPER = ("", "paper: parameters", "parameters, counted", "paper")
OURS = ("last epoch", "best on test", "seeds", "time", "hardware")


@dataclass(frozen=True)
class Evidence:
    """All that lies below a folder of results."""

    folder: Path
    runs: Sequence[Run]
    results: Mapping[Path, dict[str, Any]]
    failures: Sequence[tuple[Recipe, str]]  # a sentence each
    remarks: Mapping[str, Mapping[str, str]]  # table -> row -> what a person found out

    def failures_of(self, recipe: Recipe) -> list[str]:
        return [sentence for failed, sentence in self.failures if failed == recipe]

    def runs_of(self, recipe: Recipe) -> list[Run]:
        return [run for run in self.runs if run.recipe == recipe]

    def hardware(self, runs: Iterable[Run]) -> str:
        """Each device, and how many seeds shared it."""
        kinds = set()
        for run in runs:
            together = self.results[run.path].get("seeds_at_once", 1)
            kinds.add(run.device + (f", {together} seeds at once" if together > 1 else ""))
        return "; ".join(sorted(kinds))


def write_report(folder: Path) -> str:
    """The page, in Markdown; the same results give the same page."""
    evidence = _gather(folder)
    command = f"dumlp-pin report {folder} --out docs/reproduction.md"
    parts = [INTRODUCTION.format(command=command, folder=folder)]
    for table in TABLES.values():
        parts += [f"## {title_of(table)}\n", *_section(table, evidence)]
    parts += [*_beyond(evidence), *_robustness(folder), *_weights()]
    return "\n".join(parts)


def _gather(folder: Path) -> Evidence:
    failures = []
    for path in sorted(folder.rglob(FAILED)):
        with _named(path):
            failure = json.loads(path.read_text(encoding="utf-8"))
            where = f"Seed {failure['seed']} failed in epoch {failure['epoch']}"
            sentence = f"{where}: {failure['error']}."
            failures.append((Recipe.from_dict(failure["recipe"]), sentence))
    remarks: dict[str, dict[str, str]] = {}
    path = folder / REMARKS
    if path.is_file():
        with _named(path):
            remarks = tomllib.loads(path.read_text(encoding="utf-8"))
    evidence = Evidence(folder, load_runs(folder), find_results(folder), failures, remarks)
    _check_remarks(evidence, path)
    return evidence


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """A file that does not hold what it should is named."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} cannot be read: {what}") from error


def _check_remarks(evidence: Evidence, path: Path) -> None:
    """A remark is on a table or row that is there; on a row without a run nobody knows anything."""
    for name, remarks in evidence.remarks.items():
        if name not in TABLES:
            raise KeyError(f"{path}: the paper has no {name!r}{nearest(name, TABLES)}")
        rows = {row.label: row for row in TABLES[name].rows}
        for label in remarks.keys() - {ALL_ROWS}:
            if label not in rows:
                raise KeyError(f"{path}: {name} has no row {label!r}{nearest(label, rows)}")
            known = runs_of(rows[label], evidence.runs) or TABLES[name].metric == "macs"
            if not known:
                raise ValueError(f"{path}: {name}, {label}: there is a remark, but no result")


def _section(table: Table, evidence: Evidence) -> Iterator[str]:
    remarks = evidence.remarks.get(table.name, {})
    if table.metric == "macs":
        yield from _complexity(table, evidence)
    else:
        yield from _scores(table, evidence)
        yield from _shortened(table, evidence)
    if table.name in NOTES:
        yield NOTES[table.name]
    if ALL_ROWS in remarks:
        yield f"{remarks[ALL_ROWS]}\n"


def _scores(table: Table, evidence: Evidence) -> Iterator[str]:
    ours = {row.label: runs_of(row, evidence.runs) for row in table.rows}
    failed = any(evidence.failures_of(row.load()) for row in table.rows)
    if not any(ours.values()) and not failed:
        yield from _markdown(PAPER, (_paper(table, row) for row in table.rows))
        yield f"Not run; all rows: `{run_command(table, evidence.folder)}`\n"
        return
    rows = []
    for row in table.rows:
        cells: Sequence[str] = ("not run", "", "", "", "")
        if runs := ours[row.label]:
            cells = _ours(table, runs, evidence)
        rows.append((*_paper(table, row), *cells))
    yield from _markdown((*PAPER, *OURS), rows)
    last = {label: scores_of(table, [run.last for run in runs]) for label, runs in ours.items()}
    best = {
        label: scores_of(table, [run.best_on_test for run in runs]) for label, runs in ours.items()
    }
    for row in table.rows:
        if sentences := _sentences(table, row, best, evidence):
            yield f"- **{row.label}**: {' '.join(sentences)}"
    texts = first(table, last), order(table, best)
    if any(texts):
        yield "\n" + " ".join(text for text in texts if text)
    yield ""


def _shortened(table: Table, evidence: Evidence) -> Iterator[str]:
    """A table for each number of epochs to which rows were cut, with what their models cost."""
    measured = {row["model"]: row for row in _measured(evidence)["rows"]}
    cells: dict[tuple[int, int], list[tuple[str, ...]]] = {}
    for row in table.rows:
        full = row.load()
        for epochs, runs in shortened(full, evidence.runs).items():
            speed = measured.get(full.model.name) if not row.changes else None
            costs = f"{macs_of(row) / 1e6:,.1f} M", _speed(speed)[0] if speed else ""
            cells.setdefault((epochs, full.epochs), []).append(
                (*_paper(table, row), *_ours(table, runs, evidence), *costs)
            )
    for (epochs, full), rows in cells.items():
        yield f"The same recipes for {epochs} epochs instead of {full}:\n"
        yield from _markdown((*PAPER, *OURS, "multiply-adds", "sets a second, evaluated"), rows)


def _sentences(table: Table, row: Row, best: Scores, evidence: Evidence) -> list[str]:
    failures = evidence.failures_of(row.load())
    if not best[row.label]:
        why = "No run came to its end;" if failures else "Not run;"
        return [*failures, f"{why} `{train_command(row, evidence.folder)}`"]
    remark = evidence.remarks.get(table.name, {}).get(row.label)
    return [text for text in (difference(table, row, best), *failures, remark) if text]


def _ours(table: Table, runs: Sequence[Run], evidence: Evidence) -> Sequence[str]:
    last = score_text(scores_of(table, [run.last for run in runs]))
    best = score_text(scores_of(table, [run.best_on_test for run in runs]))
    return f"**{last}**", best, *_costs(runs, evidence)


def _costs(runs: Sequence[Run], evidence: Evidence) -> tuple[str, str, str]:
    seconds, _ = mean_and_spread([run.seconds for run in runs])
    return str(len(runs)), duration(seconds), evidence.hardware(runs)


def _complexity(table: Table, evidence: Evidence) -> Iterator[str]:
    """What is counted, and how fast the models were seen to answer, if somebody looked."""
    measured = _measured(evidence)
    speeds = {row["label"]: _speed(row) for row in measured["rows"]}
    columns = (*PAPER, "multiply-adds, counted")
    rows = [
        (*_paper(table, row), f"{macs_of(row) / 1e6:,.1f}", *speeds.get(row.label, ()))
        for row in table.rows
    ]
    if speeds:
        columns = (*columns, "sets a second", "at once", "one set, ms")
    yield from _markdown(columns, rows)
    if speeds:
        yield f"Speeds are those of evaluation on {measured['device']}.\n"
    else:
        path = evidence.folder / COMPLEXITY
        yield f"No speed was measured; `dumlp-pin reproduce {table.name} --out {path}`\n"


def _measured(evidence: Evidence) -> dict[str, Any]:
    path = evidence.folder / COMPLEXITY
    if not path.is_file():
        return {"rows": []}
    with _named(path):
        measured = json.loads(path.read_text(encoding="utf-8"))
        if missing := {"device", "rows"} - measured.keys():
            raise ValueError(f"it has no {' and no '.join(sorted(missing))}")
        return measured


def _speed(row: Mapping[str, Any]) -> tuple[str, ...]:
    rate, one = f"{row['sets_per_second']:,.0f}", f"{1000 * row['one_set_seconds']:,.2f}"
    return rate, str(row["sets_at_once"]), one


def _paper(table: Table, row: Row) -> tuple[str, str, str, str]:
    label, parameters, value, counted = printed(table, row)
    return label, parameters, counted, value


def _beyond(evidence: Evidence) -> Iterator[str]:
    """What no table of the paper has: recipes that go past it, choices made on held-out sets."""
    rows = [row.load() for table in TABLES.values() for row in table.rows]
    recipes: list[Recipe] = []
    for recipe in (
        *(run.recipe for run in evidence.runs),
        *(each for each, _ in evidence.failures),
    ):
        known = recipe in rows or any(is_shortened(recipe, row) for row in rows)
        if not known and recipe not in recipes:
            recipes.append(recipe)
    if not recipes:
        return
    recipes.sort(key=lambda recipe: recipe.name)  # those of one name stay as their folders are
    yield "## Beyond the paper\n"
    yield "Runs by recipes that are no row of the paper, scores in %.\n"
    yield from _markdown(
        ("recipe", "score", "scored on", "parameters", *OURS),
        (_other(runs, evidence) for recipe in recipes if (runs := evidence.runs_of(recipe))),
    )
    for recipe in recipes:
        for sentence in evidence.failures_of(recipe):
            yield f"- `{recipe.name}`{_changes(recipe)}: {sentence}"


def _other(runs: Sequence[Run], evidence: Evidence) -> tuple[str, ...]:
    recipe, result = runs[0].recipe, evidence.results[runs[0].path]
    headline = result["headline"]
    return (
        f"`{recipe.name}`{_changes(recipe)}",
        headline.replace("_", " "),
        result["scored_on"],
        f"{result['parameters']:,}",
        f"**{score_text([100 * run.last[headline] for run in runs])}**",
        score_text([100 * run.best_on_test[headline] for run in runs]),
        *_costs(runs, evidence),
    )


def _robustness(folder: Path) -> Iterator[str]:
    """What `dumlp-pin robustness` wrote to the folder of that name."""
    for path in sorted((folder / ROBUSTNESS).glob("*.json")):
        with _named(path):
            measured = json.loads(path.read_text(encoding="utf-8"))
            metric = measured["metric"].replace("_", " ")
            title = f"## Robustness on {measured['data']}: {metric}, %\n"
            columns = [f"`{name}`" for name in measured["models"]]
            rows = [
                (row["kind"], row["level"], *(f"{100 * s:.2f}" for s in row["scores"].values()))
                for row in measured["rows"]
            ]
        yield title
        yield from _markdown(("", "", *columns), rows)


def _weights() -> Iterator[str]:
    """The trained models of the package, each with its card."""
    rows = []
    for name in list_pretrained():
        found = find_pretrained(name)
        headline = found.result["headline"]
        score = found.result["card"]["metrics"][headline]
        link = f"[`{name}`](../src/dumlp_pin/weights/{name}/README.md)"
        parameters = f"{found.result['parameters']:,}"
        metric = headline.replace("_", " ")
        rows.append((link, found.recipe.data.name, parameters, metric, f"{100 * score:.2f}"))
    yield "## Weights that ship\n"
    yield "Scores of the weights as they are in the package, measured once more; each has a card.\n"
    yield from _markdown(("name", "data", "parameters", "score", "%"), rows)


def _changes(recipe: Recipe) -> str:
    if recipe.name not in shipped_recipes():
        return ", a recipe of its own"
    changes = differences(recipe)
    return f": {changes}" if changes else ""


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(cells)} |"
    yield ""
