"""How fast models are, with a clock that can be read."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dumlp_pin.training import speed
from dumlp_pin.training.recipe import load_recipe
from dumlp_pin.training.speed import speed_of


class Slow(nn.Module):
    """Takes a second a set, of a memory that holds `room` sets."""

    in_features = 3

    def __init__(self, clock: list[float], room: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.clock, self.room = clock, room
        self.seen: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        assert torch.is_inference_mode_enabled()
        assert torch.get_float32_matmul_precision() == "high"
        if len(x) > self.room:
            raise torch.OutOfMemoryError
        self.seen.append(tuple(x.shape))
        self.clock[0] += len(x)
        return x


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(("room", "at_once"), [(100, 8), (5, 4), (1, 1)])
def test_one_set_and_as_many_as_there_is_memory_for(
    room: int, at_once: int, clock: list[float]
) -> None:
    model = Slow(clock, room)
    assert speed_of(model, load_recipe("mnist_s")) == (1.0, at_once, 1.0)
    assert set(model.seen) == {(1, 784, 3), (at_once, 784, 3)}
    # Once without the clock, then until there is enough.
    assert model.seen[:3] == [(1, 784, 3)] * 3
    assert model.seen.count((at_once, 784, 3)) == {8: 2, 4: 2, 1: 6}[at_once]
    assert torch.get_float32_matmul_precision() == "highest"


def test_no_memory_for_one_set(clock: list[float]) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        speed_of(Slow(clock, room=0), load_recipe("mnist_s"))


def test_a_median_is_not_moved_by_one_that_is_slow(clock: list[float]) -> None:
    steps = iter([50.0, 0.1, 0.1, 0.1, 1.0, 0.1, 0.1, 0.1])

    def call() -> None:
        clock[0] += next(steps)

    measure: Any = speed._median_seconds
    assert measure(call, torch.device("cpu")) == pytest.approx(0.1)
    assert not list(steps)  # a warm-up and seven
