"""One training step by the kernels against the plain way, both against float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from dumlp_pin import blocks

Numbers = dict[str, Tensor]


@contextmanager
def plain_way() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("why_not_in_training", "why_not_broadcast"):
            patch.setattr(blocks, name, lambda *_: "plain layers are the measure")
        yield


def weighted(outputs: Sequence[Tensor]) -> Any:
    """A loss that depends on every number of the outputs."""
    torch.manual_seed(1)
    weights = [torch.randn(y.shape, dtype=torch.float64) for y in outputs]
    return sum((y.double() * w.to(y.device)).sum() for y, w in zip(outputs, weights, strict=True))


def worst_errors(numbers: Numbers, exact: Numbers) -> dict[str, float]:
    """The largest error of each kind of number: where one is lost to rounding all are at risk.

    The first word of a name is its kind.
    """
    worst: dict[str, float] = {}
    assert numbers.keys() == exact.keys()
    for name, truth in exact.items():
        kind = name.split()[0]
        if truth.double().norm() > 1e-9:  # a bias that a norm takes away again has no gradient
            worst[kind] = max(worst.get(kind, 0), error(numbers[name], truth))
    return worst


def error(actual: Tensor, truth: Tensor) -> float:
    return float((actual.double() - truth).norm() / truth.double().norm())
