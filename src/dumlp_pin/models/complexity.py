"""How large a model is and how much it computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import dumlp_pin.models.neighbours  # noqa: F401  has the operators that are counted here


class Work(NamedTuple):
    """What one forward pass computes.

    `macs` are multiply-adds of matrix products and convolutions. `distances` are distances between
    points that sampling and neighbour search take, which torch does not count. Activations, norms,
    sums and sorting are in neither.
    """

    macs: int
    distances: int


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def count_work(model: nn.Module, *inputs: Any, **named: Any) -> Work:
    """What a forward pass on these inputs computes; shapes are enough, on the "meta" device.

    >>> from dumlp_pin.models import create_model
    >>> with torch.device("meta"):
    ...     model, x = create_model("pct_modelnet40"), torch.empty(1, 1024, 3)
    >>> count_work(model, x)
    Work(macs=2219649024, distances=1310720)
    """
    counter = FlopCounterMode(display=False, custom_mapping=_DISTANCES)
    training = model.training
    with counter, torch.no_grad():
        model.eval()(*inputs, **named)
    model.train(training)
    counts = counter.get_flop_counts()["Global"]
    distances = sum(counts.get(operator, 0) for operator in _DISTANCES)
    return Work((counter.get_total_flops() - distances) // 2, distances)


def count_macs(model: nn.Module, *inputs: Any) -> int:
    """Multiply-adds of one forward pass on `inputs`, by torch's counter; see `Work`.

    >>> from dumlp_pin.models import create_model
    >>> model = create_model("dumlp_pin_modelnet40")
    >>> round(count_macs(model, torch.rand(1, 1024, 6)) / 1e6, 1)
    18.5
    """
    return count_work(model, *inputs).macs


Shape = Sequence[int]


def _of_sampling(points: Shape, mask: Shape, count: int, **_: Any) -> int:
    B, N, _D = points
    return B * min(count, N) * N


def _of_search(keys: Shape, k: int, *_: Any, **__: Any) -> int:
    # k of the keys are of points that are not there, see `nearest`.
    return math.prod(keys[:-1]) * (keys[-1] - k)


def _of_kernel(queries: Shape, places: Shape, *_: Any, **__: Any) -> int:
    return queries[0] * queries[1] * places[1]


_DISTANCES: dict[Any, Any] = {
    torch.ops.dumlp_pin.farthest_points: _of_sampling,
    torch.ops.dumlp_pin.nearest_points: _of_kernel,
    torch.ops.aten.topk: _of_search,
}
