"""Faster ways to compute an aggregation block, judged by its definition in float64."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dumlp_pin import AggregationBlock
from dumlp_pin._layout import Sets
from dumlp_pin.functional import ACTIVATIONS
from dumlp_pin.kernels import cpu, gpu
from dumlp_pin.kernels._triton import INTERPRETED
from tests.contract import Subject

PAIRS = list(itertools.product(ACTIVATIONS, repeat=2))
TWO, THREE = [(32, 5), (16, 20)], [(16, 5), (8, 3), (2,)]
# More sets and longer ones than programs at once, empty sets in between, single elements.
RAGGED: tuple[int, ...] = (70, 0, 1, 300, 0, 64, 128, 1, 5, 0)


def make(
    branches: Sequence[Sequence[int]],
    activations: Sequence[str | None],
    dtype: torch.dtype = torch.float32,
    spread: float = 1,
) -> Any:
    """Its branches give numbers about as large as `spread`."""
    subject = Subject(
        "", lambda: AggregationBlock(6, branches, activations, scale=0.5), (6,), False
    )
    block: Any = subject.build(dtype=dtype)
    for branch in block.branches:
        norm = branch.norms[-1]
        norm.weight.data *= spread
        norm.bias.data *= spread
    return block


def draw(*sizes: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 6, generator=generator) for size in sizes]


def assert_as_good(
    block: AggregationBlock, x: Sets, device: torch.device, mask: Tensor | None = None
) -> None:
    """An error no larger than twice the plain path's in the same precision, set by set.

    The device says which way is judged; in Triton's interpreter it is the GPU's, wherever it is.
    """
    on_gpu = device.type == "cuda" or INTERPRETED
    aggregate: Callable[..., Tensor] = gpu.aggregate if on_gpu else cpu.aggregate
    block, x = block.to(device), x.to(device)
    mask = None if mask is None else mask.to(device)
    exact = copy.deepcopy(block).double()(x.to(torch.float64), mask).detach()
    plain = block(x, mask).detach()  # gradients may be asked for here
    with torch.no_grad():
        poison_free_memory(device)
        fast = aggregate(block, x, mask)
    assert fast.dtype == plain.dtype
    assert fast.shape == plain.shape
    floor = 4 * torch.finfo(plain.dtype).eps
    size = exact.norm()
    for b in range(len(exact)):
        allowed = 2 * (plain[b] - exact[b]).norm() + floor * exact[b].norm()
        error = (fast[b] - exact[b]).norm()
        assert error <= allowed, f"set {b}: {error / size:.1e}, allowed {allowed / size:.1e}"


def poison_free_memory(device: torch.device) -> None:
    """So that numbers nobody wrote are found: the next allocations get what this leaves."""
    if device.type == "cuda":
        for exponent in range(9, 24):
            torch.full((1 << exponent,), torch.nan, device=device)
