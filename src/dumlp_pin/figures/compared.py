"""Pictures of the results of many runs: `dumlp-pin figure NAME RESULTS`."""

from __future__ import annotations

from pathlib import Path

from dumlp_pin.figures.activations import draw_activations
from dumlp_pin.figures.broadcasts import draw_broadcasts
from dumlp_pin.figures.costs import System, draw_costs
from dumlp_pin.models import count_parameters
from dumlp_pin.training.paper import get_table
from dumlp_pin.training.reproduce import load_runs, macs_of, model_of, runs_of, scores_of
from dumlp_pin.training.results import find_results, mean_and_spread


def picture_activations(results: Path, out: Path) -> None:
    """Figure 4 of the paper, whose values are lost, from the runs below a folder."""
    table, runs = get_table("figure4"), load_runs(results)
    scores = {}
    for row in table.rows:
        first, second = row.label.split(", ")
        found = runs_of(row, runs)
        scores[first, second] = scores_of(table, [run.last for run in found])
    if not any(scores.values()):
        raise ValueError(f"{results} holds no run of figure4: dumlp-pin reproduce figure4 --run")
    draw_activations(out, scores)


def picture_broadcasts(results: Path, out: Path) -> None:
    """Table 8 of the paper beside the runs below a folder."""
    table, runs = get_table("table8"), load_runs(results)
    last, best, paper = {}, {}, {}
    for row in table.rows:
        count = int(row.label.split()[0])
        if row.value is not None:
            paper[count] = row.value
        if found := runs_of(row, runs):
            last[count] = scores_of(table, [run.last for run in found])
            best[count] = scores_of(table, [run.best_on_test for run in found])
    if not last:
        raise ValueError(f"{results} holds no run of table8: dumlp-pin reproduce table8 --run")
    draw_broadcasts(out, last, best, paper)


def picture_costs(results: Path, out: Path) -> None:
    """The systems of the paper's Table 3 that were run, by what they cost."""
    table, runs = get_table("table3"), load_runs(results)
    written = find_results(results)
    systems = []
    for row in table.rows:
        if found := runs_of(row, runs):
            # Seeds that share a GPU share its time.
            seconds = [run.seconds / written[run.path].get("seeds_at_once", 1) for run in found]
            systems.append(
                System(
                    name=row.label,
                    scores=scores_of(table, [run.last for run in found]),
                    parameters=count_parameters(model_of(row)),
                    macs=macs_of(row),
                    seconds=mean_and_spread(seconds)[0],
                    is_ours=row.recipe == "modelnet40",
                )
            )
    if not systems:
        raise ValueError(f"{results} holds no run of table3: dumlp-pin reproduce table3 --run")
    draw_costs(out, systems)
