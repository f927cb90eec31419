"""The paper's tables beside what our runs came to: `dumlp-pin reproduce table3`."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import rich.table
import torch
from rich.console import Console

from dumlp_pin._files import check_file
from dumlp_pin.models import count_parameters, create_model
from dumlp_pin.models.complexity import count_work
from dumlp_pin.training.distributed import choose_device
from dumlp_pin.training.paper import TABLES, Row, Table, get_table
from dumlp_pin.training.recipe import Recipe, load_recipe
from dumlp_pin.training.results import (
    environment,
    find_results,
    mean_and_spread,
    plain,
    write_json,
)
from dumlp_pin.training.sizes import inputs_for
from dumlp_pin.training.speed import speed_of
from dumlp_pin.training.trainer import train

SEEDS = 5  # "We independently run all experiments 5 times"


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
    out: Path | None = None,
) -> None:
    """Print a table of the paper with the results below `folder`; `run` trains what is missing.

    Complexity is counted and measured on the spot; its numbers go to the file `out` too.
    """
    table = get_table(name)
    if seeds < 1:
        raise ValueError(f"--seeds is {seeds}, expected at least 1")
    if table.metric == "macs":
        if out is not None:
            check_file(out)
        _complexity(table, choose_device(device), console, out)
        return
    if out is not None:
        raise ValueError(f"only complexity writes a file: {table.name} has one for each run")
    if run:
        _train_missing(table, folder, seeds, device)
    runs = load_runs(folder)
    ours = {row.label: runs_of(row, runs) for row in table.rows}
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
        done = {run.seed for run in runs_of(row, load_runs(folder))}
        for seed in range(seeds):
            out = folder / row.folder / f"seed{seed}"
            if seed not in done:
                begun = (out / "checkpoint.safetensors").exists()
                train(row.load(), seed, out, resume=begun, device=device)


def _scores(table: Table, ours: dict[str, list[Run]]) -> rich.table.Table:
    shown = _table(table, "last\nepoch", "best\non test", "\nseeds", "\ntime", "\nhardware")
    for row in table.rows:
        cells = ["not run"]
        if runs := ours.get(row.label, []):
            cells = [
                score_text(scores_of(table, [run.last for run in runs])),
                score_text(scores_of(table, [run.best_on_test for run in runs])),
                str(len(runs)),
                duration(mean_and_spread([run.seconds for run in runs])[0]),
                ", ".join(sorted({run.device for run in runs})),
            ]
        shown.add_row(*printed(table, row), *cells)
    return shown


def _complexity(table: Table, device: torch.device, console: Console, out: Path | None) -> None:
    shown = _table(table, "counted\nmultiply-adds", "sets a\nsecond", "at once", "one set,\nms")
    rows = []
    for row in table.rows:
        recipe, model = row.load(), model_of(row)
        speed = speed_of(model.to(device), recipe)
        rows.append({"label": row.label, "model": recipe.model.name, **speed._asdict()})
        shown.add_row(
            *printed(table, row),
            f"{macs_of(row) / 1e6:,.1f}",
            f"{speed.sets_per_second:,.1f}",
            str(speed.sets_at_once),
            f"{1000 * speed.one_set_seconds:,.2f}",
        )
        rows[-1] |= {"parameters": count_parameters(model), "macs": macs_of(row)}
    console.print(shown)
    machine = environment(device)
    console.print(f"measured on {machine['device']}, {machine['threads']} threads of the processor")
    if out is not None:
        write_json(out, plain({**machine, "rows": rows}))


def _table(table: Table, *ours: str) -> rich.table.Table:
    shown = rich.table.Table(title=title_of(table), title_justify="left", box=None)
    shown.add_column("", no_wrap=True)
    for header in ("paper's\nparameters", "paper's\nscore", "counted\nparameters", *ours):
        shown.add_column(header, overflow="fold")
    return shown


def title_of(table: Table) -> str:
    """
    >>> title_of(get_table("table1"))
    'Table 1: MNIST, error, %'
    """
    name = re.sub(r"(\d)$", r" \1", table.name).capitalize()
    return f"{name}: {table.title}, {table.unit}"


def printed(table: Table, row: Row) -> Sequence[str]:
    """The label, what the paper prints, and the parameters as counted here."""
    with torch.device("meta"):  # to be counted, weights need no values
        model = model_of(row)
    counted = f"{count_parameters(getattr(model, table.part) if table.part else model):,}"
    value = "" if row.value is None else f"{row.value:,.{table.decimals}f}"
    if row.spread is not None:
        value += f" ± {row.spread:g}"
    return row.label, row.parameters or "", value, counted


def scores_of(table: Table, epochs: Sequence[dict[str, float]]) -> list[float]:
    """In the unit of the table."""
    scores = [100 * epoch[table.metric] for epoch in epochs]
    return [100 - score if table.is_error else score for score in scores]


def score_text(scores: Sequence[float]) -> str:
    """
    >>> score_text([91.0, 93.0]), score_text([91.0])
    ('92.00 ± 1.41', '91.00')
    """
    mean, spread = mean_and_spread(scores)
    return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"


def model_of(row: Row) -> Any:
    recipe = row.load().model
    return create_model(recipe.name, **recipe.overrides)


@functools.cache
def macs_of(row: Row) -> int:
    """Multiply-adds of a row's model on one set as large as in its recipe."""
    with torch.device("meta"):
        model = model_of(row)
    return count_work(model, **inputs_for(row.load(), model)).macs


def duration(seconds: float) -> str:
    """
    >>> duration(75.0), duration(12_000.0)
    ('75 s', '3.3 h')
    """
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:.1f} h"


def _left_out(table: Table, runs: Iterable[Run], ours: dict[str, list[Run]]) -> Iterable[str]:
    """Runs by one of the table's recipes that count in no table, and why."""
    names = {row.recipe for row in table.rows}
    counted = [run for each in ours.values() for run in each]
    rows = [row.load() for each in TABLES.values() for row in each.rows]
    for run in runs:
        if run.recipe.name in names and run.recipe not in rows:
            yield f"left out: {run.path}: {differences(run.recipe)}"
        elif any(run.recipe == other.recipe for other in counted) and run not in counted:
            yield f"left out: {run.path}: seed {run.seed} is there already"


def differences(recipe: Recipe) -> str:
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
    missing = [row for row in table.rows if not ours[row.label]]
    for row in missing:
        yield train_command(row, folder)
    if missing:
        yield f"or all of them: {run_command(table, folder)}"


def train_command(row: Row, folder: Path) -> str:
    """What fills a row."""
    changes = [word for change in row.changes for word in ("--set", change)]
    out = ["--out", str(folder / row.folder), "--seeds", str(SEEDS)]
    return shlex.join(["dumlp-pin", "train", row.recipe, *changes, *out])


def run_command(table: Table, folder: Path) -> str:
    """What fills all rows of a table."""
    return shlex.join(["dumlp-pin", "reproduce", table.name, "--results", str(folder), "--run"])
