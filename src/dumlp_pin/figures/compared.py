"""Pictures of the results of many runs: `dumlp-pin figure NAME RESULTS`."""

from __future__ import annotations

from pathlib import Path

import torch

from dumlp_pin.figures.activations import draw_activations
from dumlp_pin.figures.broadcasts import draw_broadcasts
from dumlp_pin.figures.costs import System, draw_costs
from dumlp_pin.models import count_parameters, create_model
from dumlp_pin.models.complexity import count_work
from dumlp_pin.training.paper import get_table
from dumlp_pin.training.recipe import load_recipe, shipped_recipes
from dumlp_pin.training.reproduce import Run, load_runs, runs_of, scores_of
from dumlp_pin.training.results import find_results, mean_and_spread
from dumlp_pin.training.shortened import shortened
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

    All of them after the same number of epochs, that of which there are runs of most systems.
    """
    table, runs = get_table("table3"), load_runs(results)
    recipes = {row.label: row.load() for row in table.rows}
    for name in shipped_recipes():
        recipe = load_recipe(name)
        if recipe.data.name == "modelnet40" and recipe not in recipes.values():
            recipes[name] = recipe
    by_epochs: dict[int, dict[str, list[Run]]] = {}
    for label, recipe in recipes.items():
        whole = [run for run in runs if run.recipe == recipe]
        for epochs, found in {recipe.epochs: whole, **shortened(recipe, runs)}.items():
            if found:
                by_epochs.setdefault(epochs, {})[label] = found
    if not by_epochs:
        raise ValueError(f"{results} holds no run of table3: dumlp-pin reproduce table3 --run")
    epochs = max(by_epochs, key=lambda epochs: (len(by_epochs[epochs]), epochs))
    written = find_results(results)
    systems = []
    for label, found in by_epochs[epochs].items():
        recipe = recipes[label]
        with torch.device("meta"):  # to be counted, weights need no values
            model = create_model(recipe.model.name, **recipe.model.overrides)
            work = count_work(model, **inputs_for(recipe, model))
        # Seeds that share a GPU share its time.
        seconds = [run.seconds / written[run.path].get("seeds_at_once", 1) for run in found]
        systems.append(
            System(
                name=label,
                scores=scores_of(table, [run.last for run in found]),
                parameters=count_parameters(model),
                macs=work.macs,
                seconds=mean_and_spread(seconds)[0],
                is_ours=recipe.model.name.startswith("dumlp_pin"),
            )
        )
    draw_costs(out, systems, epochs)
