"""How large each model is and how much it computes, beside what the paper prints of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dumlp_pin.models import count_parameters, create_model
from dumlp_pin.models.complexity import Work, count_work
from dumlp_pin.training.paper import TABLES, Table
from dumlp_pin.training.recipe import Recipe, load_recipe, shipped_recipes

PIXELS = {"digits": 8 * 8, "mnist": 28 * 28}
FACES = (10, 3, 49, 40)


@dataclass(frozen=True)
class Size:
    """Of a model, and of one set as large as in its recipe."""

    name: str
    task: str
    parameters: int
    work: Work | None  # None for a model without a recipe
    part: str = ""  # the part that the paper prints the parameters of; all of it
    of_part: int | None = None
    printed_parameters: str | None = None
    printed_macs: float | None = None  # millions


def size_of(name: str) -> Size:
    """Without a weight in memory.

    >>> size_of("dumlp_pin_modelnet40").work
    Work(macs=18491392, distances=0)
    """
    with torch.device("meta"):
        model = create_model(name)
    recipe = _recipes().get(name)
    work = count_work(model, **inputs_for(recipe, model)) if recipe else None
    printed: dict[str, Any] = {}
    for table, parameters, value in _printed().get(name, ()):
        if table.metric == "macs":
            printed["printed_macs"] = value
        printed["printed_parameters"] = parameters
        if table.part:
            printed["part"] = table.part
            printed["of_part"] = count_parameters(getattr(model, table.part))
    return Size(name, model.task, count_parameters(model), work, **printed)


def inputs_for(recipe: Recipe, model: Any, sets: int = 1) -> dict[str, Tensor]:
    """Random sets as large as the recipe's, on the model's device."""
    device = next(model.parameters()).device
    if recipe.data.name == "celeba":
        return {"x": torch.rand(sets, *FACES, device=device)}
    elements = PIXELS.get(recipe.data.name, recipe.data.points)
    if elements is None:
        raise ValueError(f"recipe {recipe.name} does not say how many points a set has")
    inputs = {"x": torch.rand(sets, elements, model.in_features, device=device)}
    if getattr(model, "num_categories", 0):
        inputs["category"] = torch.zeros(sets, dtype=torch.int64, device=device)
    return inputs


@cache
def _recipes() -> dict[str, Recipe]:
    """The recipe of each model: the paper's, or else the first that ships."""
    of_paper = [row.recipe for table in TABLES.values() for row in table.rows]
    recipes: dict[str, Recipe] = {}
    for name in dict.fromkeys([*of_paper, *shipped_recipes()]):
        recipe = load_recipe(name)
        recipes.setdefault(recipe.model.name, recipe)
    return recipes


@cache
def _printed() -> dict[str, list[tuple[Table, str, float | None]]]:
    """What tables print of each model as it is, without changes."""
    printed: dict[str, list[tuple[Table, str, float | None]]] = {}
    for table in TABLES.values():
        for row in table.rows:
            if row.parameters and not row.changes and table.part in ("", "extractor"):
                of_model = printed.setdefault(row.load().model.name, [])
                of_model.append((table, row.parameters, row.value))
    return printed
