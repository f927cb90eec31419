"""Score a trained model again: the number in its result must come out to the last digit."""

from __future__ import annotations

from dataclasses import replace

import torch

from dumlp_pin.pretrained import Pretrained
from dumlp_pin.training.scoring import matmul_precision, score
from dumlp_pin.training.tasks import load_task


def evaluate(
    found: Pretrained, data: str | None = None, device: str | torch.device = "cpu"
) -> dict[str, float]:
    """The metrics on the sets that the model's recipe scores, or on those of another data set."""
    recipe = found.recipe
    if found.card:
        # What ships must come to the same digits on any machine: TF32 and bfloat16 do not.
        recipe = replace(recipe, precision="fp32")
    if data is not None:
        recipe = replace(recipe, data=replace(recipe.data, name=data))
    task = load_task(recipe, torch.device(device))
    if task.class_names != found.class_names:
        raise ValueError(
            f"{found.recipe.model.name} knows {len(found.class_names)} classes, "
            f"{recipe.data.name} has {len(task.class_names)} others"
        )
    with matmul_precision(recipe):
        return score(found.model().to(device), task, recipe).compute()
