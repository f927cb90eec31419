"""The paper's tables beside what our runs came to: `dumlp-pin reproduce table3`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import rich.table
import torch
from rich.console import Console

from dumlp_pin.models import count_macs, count_parameters, create_model
from dumlp_pin.training.paper import TABLES, Row, Table, get_table
from dumlp_pin.training.recipe import Recipe, load_recipe
from dumlp_pin.training.results import find_results, mean_and_spread
from dumlp_pin.training.trainer import train

SEEDS = 5  # "We independently run all experiments 5 times"
POINTS = 1024  # of the shape whose multiply-adds are counted


@dataclass(frozen=True)
class Run:
    path: Path
    recipe: Recipe
    seed: int
    last: dict[str, float]
    best_on_test: dict[str, float]
    seconds: float
    device: str


def reproduce(
    name: str,
    folder: Path,
    console: Console,
    *,
    run: bool = False,
    seeds: int = SEEDS,
    device: str | None = None,
) -> None:
    """Print a table of the paper with the results below `folder`; `run` trains what is missing."""
    table = get_table(name)
    if table.metric == "macs":
        console.print(_complexity(table))
        return
    if run:
        _train_missing(table, folder, seeds, device)
    runs = load_runs(folder)
    ours = {row.label: runs_of(row, runs) for row in table.rows if row.recipe}
    console.print(_scores(table, ours))
    for line in (*_left_out(table, runs, ours), *_to_run(table, ours, folder)):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def load_runs(folder: Path) -> list[Run]:
    runs = []
    for path, result in find_results(folder).items():
        try:
            values = {f.name: result[f.name] for f in fields(Run) if f.name != "path"}
            values["recipe"] = Recipe.from_dict(values["recipe"])
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{path} is not the result of a run: {error}") from error
        runs.append(Run(path, **values))
    return runs


def runs_of(row: Row, runs: Iterable[Run]) -> list[Run]:
    """One run a seed, by exactly the row's recipe: with any value changed it is another run."""
    recipe = row.load()
    by_seed: dict[int, Run] = {}
    for run in runs:
        if run.recipe == recipe:
            by_seed.setdefault(run.seed, run)
    return list(by_seed.values())


def _train_missing(table: Table, folder: Path, seeds: int, device: str | None) -> None:
    for row in table.rows:
        if row.recipe:
            done = {run.seed for run in runs_of(row, load_runs(folder))}
            for seed in range(seeds):
                out = folder / row.folder / f"seed{seed}"
                if seed not in done:
                    begun = (out / "checkpoint.safetensors").exists()
                    train(row.load(), seed, out, resume=begun, device=device)


def _scores(table: Table, ours: dict[str, list[Run]]) -> rich.table.Table:
    shown = _table(table, "last\nepoch", "best\non test", "\nseeds", "\ntime", "\nhardware")
    for row in table.rows:
        cells = ["not run"] if row.recipe else []
        if runs := ours.get(row.label, []):
            cells = [
                _score(table, [run.last for run in runs]),
                _score(table, [run.best_on_test for run in runs]),
                str(len(runs)),
                _duration(mean_and_spread([run.seconds for run in runs])[0]),
                ", ".join(sorted({run.device for run in runs})),
            ]
        shown.add_row(*_printed(table, row), *cells)
    return shown


def _complexity(table: Table) -> rich.table.Table:
    shown = _table(table, "counted\nmultiply-adds")
    for row in table.rows:
        cells = []
        if row.recipe:
            model = _model(row)
            macs = count_macs(model, torch.rand(1, POINTS, model.in_features))
            cells = [f"{macs / 1e6:,.1f}"]
        shown.add_row(*_printed(table, row), *cells)
    return shown


def _table(table: Table, *ours: str) -> rich.table.Table:
    title = f"{table.name[:-1].capitalize()} {table.name[-1]}: {table.title}, {table.unit}"
    shown = rich.table.Table(title=title, title_justify="left", box=None)
    shown.add_column("", no_wrap=True)
    for header in ("paper's\nparameters", "paper's\nscore", "counted\nparameters", *ours):
        shown.add_column(header, overflow="fold")
    return shown


def _printed(table: Table, row: Row) -> Sequence[str]:
    """The label, what the paper prints, and the parameters as counted here."""
    counted = ""
    if row.recipe:
        model = _model(row)
        counted = f"{count_parameters(getattr(model, table.part) if table.part else model):,}"
    value = "" if row.value is None else f"{row.value:,.{table.decimals}f}"
    if row.spread is not None:
        value += f" ± {row.spread:g}"
    return row.label, row.parameters or "", value, counted


def _score(table: Table, epochs: Sequence[dict[str, float]]) -> str:
    scores = [100 * epoch[table.metric] for epoch in epochs]
    mean, spread = mean_and_spread([100 - score if table.is_error else score for score in scores])
    return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"


def _model(row: Row) -> Any:
    recipe = row.load().model
    return create_model(recipe.name, **recipe.overrides)


def _duration(seconds: float) -> str:
    """
    >>> _duration(75.0), _duration(12_000.0)
    ('75 s', '3.3 h')
    """
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:.1f} h"


def _left_out(table: Table, runs: Iterable[Run], ours: dict[str, list[Run]]) -> Iterable[str]:
    """Runs by one of the table's recipes that count in no table, and why."""
    names = {row.recipe for row in table.rows}
    counted = [run for each in ours.values() for run in each]
    rows = [row.load() for each in TABLES.values() for row in each.rows if row.recipe]
    for run in runs:
        if run.recipe.name in names and run.recipe not in rows:
            yield f"left out: {run.path}: {_differences(run.recipe)}"
        elif any(run.recipe == other.recipe for other in counted) and run not in counted:
            yield f"left out: {run.path}: seed {run.seed} is there already"


def _differences(recipe: Recipe) -> str:
    """The values in which a recipe is not the shipped one of its name."""
    theirs, shipped = _flat(recipe.to_dict()), _flat(load_recipe(recipe.name).to_dict())
    return "; ".join(
        f"{key} is {theirs.get(key)}, not {shipped.get(key)}"
        for key in theirs | shipped
        if theirs.get(key) != shipped.get(key)
    )


def _flat(table: dict[str, Any], above: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in table.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {above + key: value}
    return flat


def _to_run(table: Table, ours: dict[str, list[Run]], folder: Path) -> Iterable[str]:
    """The commands that would fill the rows without results."""
    missing = [row for row in table.rows if row.recipe and not ours[row.label]]
    for row in missing:
        changes = [word for change in row.changes for word in ("--set", change)]
        out = ["--out", str(folder / row.folder), "--seeds", str(SEEDS)]
        yield shlex.join(["dumlp-pin", "train", row.recipe or "", *changes, *out])
    if missing:
        command = shlex.join(["dumlp-pin", "reproduce", table.name, "--results", str(folder)])
        yield f"or all of them: {command} --run"
