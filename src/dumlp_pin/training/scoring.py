"""A model's metrics on the sets that its task scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dumlp_pin.training.recipe import Recipe
from dumlp_pin.training.tasks import Task


@torch.inference_mode()
def score(model: nn.Module, task: Task, recipe: Recipe) -> Any:
    """The metrics of a model on the sets that a task scores."""
    model.eval()
    device = next(model.parameters()).device
    metrics = task.new_metrics(device)
    for index in torch.arange(task.size("test"), device=device).split(task.scoring_batch()):
        batch = task.batch("test", index)
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bf16"):
            output = model(**batch.inputs)
        task.score(metrics, output, batch)
    return metrics


@contextmanager
def matmul_precision(recipe: Recipe) -> Iterator[None]:
    """PyTorch has one setting for all; other code in the process gets its own back."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if recipe.precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
