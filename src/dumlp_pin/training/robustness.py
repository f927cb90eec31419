"""How much trained models bear, side by side: `dumlp-pin robustness`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dumlp_pin.data.corruption import Corruption, corruptions
from dumlp_pin.data.records import Images, Scenes
from dumlp_pin.data.registry import get
from dumlp_pin.pretrained import Pretrained, find_pretrained
from dumlp_pin.training.recipe import Recipe
from dumlp_pin.training.results import environment
from dumlp_pin.training.scoring import matmul_precision
from dumlp_pin.training.tasks import Batch, Task, load_task

CHANCE_SEED = 0  # every model meets the same corrupted sets
LARGEST_GROWTH = 4  # times the elements of a set, with duplicates: so many fewer sets at once
AS_THEY_ARE = Corruption("as they are", "", lambda x, labels, chance: (x, labels))


def robustness(names: Sequence[str], device: torch.device) -> dict[str, Any]:
    """The headline metric of each model on its test sets as they are and corrupted.

    Returns what the command writes: the data set, the metric, and a row for each corruption with
    the score of each model by its name.
    """
    models = {name: find_pretrained(name) for name in names}
    if len(models) < len(names):
        raise ValueError(f"a model is named twice: {', '.join(names)}")
    first, *others = models.values()
    for other in others:
        if other.recipe.data.name != first.recipe.data.name:
            raise ValueError(
                f"models to compare are of one data set: {first.recipe.model.name} is of "
                f"{first.recipe.data.name}, {other.recipe.model.name} of {other.recipe.data.name}"
            )
    scores = {name: _scores_of(found, device) for name, found in models.items()}
    (headline,) = {headline for headline, _ in scores.values()}
    rows = list(scores[names[0]][1])
    return {
        "data": first.recipe.data.name,
        "scored_on": first.result["scored_on"],
        "metric": headline,
        "models": {name: found.recipe.name for name, found in models.items()},
        "rows": [
            {
                "kind": kind,
                "level": level,
                "scores": {name: each[kind, level] for name, (_, each) in scores.items()},
            }
            for kind, level in rows
        ],
        **environment(device),
    }


def _scores_of(found: Pretrained, device: torch.device) -> tuple[str, dict[tuple[str, str], float]]:
    record = get(found.recipe.data.name).record
    if found.task == "anomaly-detection" or issubclass(record, Scenes):
        raise ValueError(
            f"corruptions are of points and pixels; {found.recipe.data.name} has neither"
        )
    task, model = load_task(found.recipe, device), found.model().to(device)
    one = torch.zeros(1, dtype=torch.long, device=device)
    elements = task.batch("test", one).inputs["x"].shape[1]
    place = 2 if issubclass(record, Images) else 3
    scores = {}
    for corruption in (AS_THEY_ARE, *corruptions(elements, place)):
        with matmul_precision(found.recipe):
            metrics = _score(model, task, found.recipe, corruption)
        scores[corruption.kind, corruption.level] = metrics.compute()[task.headline]
    return task.headline, scores


@torch.inference_mode()
def _score(model: nn.Module, task: Task, recipe: Recipe, corruption: Corruption) -> Any:
    """The metrics of a model on corrupted test sets; elements without a label are not asked for."""
    chance = torch.Generator().manual_seed(CHANCE_SEED)
    device = next(model.parameters()).device
    metrics = task.new_metrics(device)
    at_once = max(1, task.scoring_batch() // LARGEST_GROWTH)
    for index in torch.arange(task.size("test"), device=device).split(at_once):
        batch = task.batch("test", index)
        labels = batch.target.cpu() if batch.target.ndim == 2 else None
        x, labels = corruption.apply(batch.inputs["x"].cpu(), labels, chance)
        inputs = batch.inputs | {"x": x.to(device)}
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
            output = model(**inputs)
        if labels is None:
            task.score(metrics, output, Batch(inputs, batch.target))
        else:
            task.score(metrics, output[:, : labels.shape[1]], Batch(inputs, labels.to(device)))
    return metrics
