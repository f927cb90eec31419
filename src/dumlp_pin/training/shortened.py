"""Runs of a recipe for fewer epochs than it has, so that dear models stand beside cheap ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dumlp_pin.training.recipe import Recipe
from dumlp_pin.training.reproduce import Run


def shortened(full: Recipe, runs: Iterable[Run]) -> dict[int, list[Run]]:
    """By their epochs, most first: runs by the recipe but for its length, one a seed."""
    found: dict[int, dict[int, Run]] = {}
    for run in runs:
        if is_shortened(run.recipe, full):
            found.setdefault(run.recipe.epochs, {}).setdefault(run.seed, run)
    return {epochs: list(found[epochs].values()) for epochs in sorted(found, reverse=True)}


def is_shortened(recipe: Recipe, full: Recipe) -> bool:
    """Whether it has fewer epochs, and perhaps other milestones, and all else is the same.

    >>> from dumlp_pin.training.recipe import load_recipe
    >>> changes = ["epochs=20", "schedule.milestones=[16]"]
    >>> is_shortened(load_recipe("modelnet40", changes), load_recipe("modelnet40"))
    True
    >>> changes += ["optimizer.lr=0.1"]
    >>> is_shortened(load_recipe("modelnet40", changes), load_recipe("modelnet40"))
    False
    """
    schedule = replace(recipe.schedule, milestones=full.schedule.milestones)
    as_long = replace(recipe, epochs=full.epochs, schedule=schedule)
    return recipe.epochs < full.epochs and as_long == full
