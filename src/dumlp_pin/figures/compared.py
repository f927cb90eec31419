"""Pictures of the results of many runs: `dumlp-pin figure NAME RESULTS`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dumlp_pin.figures.activations import draw_activations
from dumlp_pin.figures.broadcasts import draw_broadcasts
from dumlp_pin.figures.costs import System, draw_costs
from dumlp_pin.models import count_parameters, create_model
from dumlp_pin.models.complexity import count_work
from dumlp_pin.training.paper import get_table
from dumlp_pin.training.recipe import Recipe, load_recipe, shipped_recipes
from dumlp_pin.training.reproduce import Run, load_runs, runs_of, scores_of
from dumlp_pin.training.results import find_results, mean_and_spread
from dumlp_pin.training.sizes import inputs_for


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
    """The systems of the paper's Table 3 that were run, and our other recipes for its data.

    A system that was only trained for fewer epochs bears their number.
    """
    table, runs = get_table("table3"), load_runs(results)
    written = find_results(results)
    recipes = {row.label: row.load() for row in table.rows}
    for name in shipped_recipes():
        recipe = load_recipe(name)
        if recipe.data.name == "modelnet40" and recipe not in recipes.values():
            recipes[name] = recipe
    systems = []
    for label, recipe in recipes.items():
        found = [run for run in runs if run.recipe == recipe] or _cut_short(recipe, runs)
        if not found:
            continue
        epochs = found[0].recipe.epochs
        with torch.device("meta"):  # to be counted, weights need no values
            model = create_model(recipe.model.name, **recipe.model.overrides)
            work = count_work(model, **inputs_for(recipe, model))
        # Seeds that share a GPU share its time.
        seconds = [run.seconds / written[run.path].get("seeds_at_once", 1) for run in found]
        systems.append(
            System(
                name=label if epochs == recipe.epochs else f"{label}, {epochs} epochs",
                scores=scores_of(table, [run.last for run in found]),
                parameters=count_parameters(model),
                macs=work.macs,
                seconds=mean_and_spread(seconds)[0],
                is_ours=recipe.model.name.startswith("dumlp_pin"),
            )
        )
    if not systems:
        raise ValueError(f"{results} holds no run of table3: dumlp-pin reproduce table3 --run")
    draw_costs(out, systems)


def _cut_short(recipe: Recipe, runs: Sequence[Run]) -> list[Run]:
    """Runs of a recipe but for the number of epochs and the schedule; those with the most."""
    shorter = [
        run
        for run in runs
        if replace(run.recipe, epochs=recipe.epochs, schedule=recipe.schedule) == recipe
    ]
    most = max((run.recipe.epochs for run in shorter), default=0)
    return [run for run in shorter if run.recipe.epochs == most]
