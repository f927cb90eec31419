"""How fast a model answers on this machine: one set at a time, and many at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from dumlp_pin.training.recipe import Recipe
from dumlp_pin.training.sizes import inputs_for

SETS_AT_ONCE = {"cuda": 256, "cpu": 8}
REPEATS = 7
ENOUGH_SECONDS = 2.0  # after which nothing is repeated


class Speed(NamedTuple):
    sets_per_second: float
    sets_at_once: int  # in that rate; fewer than usual where the memory holds no more
    one_set_seconds: float


def speed_of(model: Any, recipe: Recipe) -> Speed:
    """Of a model on its device, with random sets as large as the recipe's.

    Each time is a median of several after a warm-up, and ends when the device is done. Matrix
    products are as precise as the recipe's: TF32 on a GPU, if it does not say otherwise.
    """
    device = next(model.parameters()).device
    model = model.eval()
    sets = SETS_AT_ONCE.get(device.type, SETS_AT_ONCE["cpu"])
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if recipe.precision == "fp32" else "high")
    try:
        one = _median_seconds(_answer(model, recipe, 1), device)
        while True:
            try:
                many = _median_seconds(_answer(model, recipe, sets), device)
            except torch.OutOfMemoryError:
                if sets == 1:
                    raise
                sets //= 2
                continue
            return Speed(sets / many, sets, one)
    finally:
        torch.set_float32_matmul_precision(before)


def _answer(model: Any, recipe: Recipe, sets: int) -> Callable[[], None]:
    inputs = inputs_for(recipe, model, sets)

    def answer() -> None:
        with torch.inference_mode():
            model(**inputs)

    return answer


def _median_seconds(call: Callable[[], None], device: torch.device) -> float:
    call()
    _wait(device)
    seconds: list[float] = []
    while len(seconds) < REPEATS and sum(seconds) < ENOUGH_SECONDS:
        start = time.perf_counter()
        call()
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
