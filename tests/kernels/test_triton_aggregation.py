"""The aggregation block on a GPU against its definition in float64.

`make test-gpu` runs this on the device, `test_interpreted` in Triton's interpreter.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dumlp_pin import AggregationBlock, SetBatch
from dumlp_pin._layout import Sets
from dumlp_pin.functional import ACTIVATIONS
from dumlp_pin.kernels import gpu
from tests.contract import Subject

pytestmark = pytest.mark.gpu

PAIRS = list(itertools.product(ACTIVATIONS, repeat=2))
TWO, THREE = [(32, 5), (16, 20)], [(16, 5), (8, 3), (2,)]
# More sets and longer ones than programs at once, empty sets in between, single elements.
RAGGED = (70, 0, 1, 300, 0, 64, 128, 1, 5, 0)


@pytest.fixture
def device() -> torch.device:
    if gpu.INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")


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
    """An error no larger than twice the plain path's in the same precision, set by set."""
    block, x = block.to(device), x.to(device)
    mask = None if mask is None else mask.to(device)
    with torch.no_grad():
        exact = copy.deepcopy(block).double()(x.to(torch.float64), mask)
        plain = block(x, mask)
        poison_free_memory(device)
        fast = gpu.aggregate(block, x, mask)
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


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_pair_of_activations(pair: tuple[str, str], device: torch.device) -> None:
    assert_as_good(make(TWO, pair), SetBatch.from_list(draw(*RAGGED)), device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("names", [("softmax",), ("squash",), ("softmax", None), ("relu",) * 3])
def test_orders_and_types(
    names: tuple[str | None, ...], dtype: torch.dtype, device: torch.device
) -> None:
    branches = {1: [(32, 5)], 2: TWO, 3: THREE}[len(names)]
    x = SetBatch.from_list(draw(*RAGGED)).to(dtype)
    assert_as_good(make(branches, names, dtype), x, device)


@pytest.mark.parametrize("branches", [[(3,), (4,)], [(20, 7, 40), (9,)], [(17, 64), (3, 3, 3, 3)]])
def test_depths_and_widths(branches: list[tuple[int, ...]], device: torch.device) -> None:
    assert_as_good(make(branches, ("softmax", "elu")), torch.stack(draw(90, 90)), device)


@pytest.mark.parametrize("sizes", [(1,), (64,), (65,), (1000,), (3,) * 40, (129,) * 7])
def test_sizes(sizes: tuple[int, ...], device: torch.device) -> None:
    """One program, several on one set, several sets on one, tiles that are full and not."""
    block, sets = make(TWO, ("softmax", "squash")), draw(*sizes)
    assert_as_good(block, torch.stack(sets), device)
    assert_as_good(block, SetBatch.from_list(sets), device)


def test_padding_never_matters(device: torch.device) -> None:
    x, mask = SetBatch.from_list(draw(*RAGGED)).to_padded()
    x = torch.where(mask[..., None], x, torch.nan)
    holes = mask & (torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) < 0.7)
    for activations in (("softmax", None), ("squash", "elu")):
        block = make(TWO, activations)
        assert_as_good(block, x, device, mask)
        assert_as_good(block, torch.where(holes[..., None], x, torch.nan), device, holes)


@pytest.mark.parametrize("spread", [1e-3, 1e2, 1e4])
@pytest.mark.parametrize("names", [("softmax", "none"), ("softmax", "elu"), ("squash", "relu")])
def test_small_and_large_numbers(
    names: tuple[str, str], spread: float, device: torch.device
) -> None:
    assert_as_good(make(TWO, names, spread=spread), SetBatch.from_list(draw(*RAGGED)), device)


def test_equal_elements(device: torch.device) -> None:
    x = torch.ones(2, 500, 6) * torch.randn(2, 1, 6, generator=torch.Generator().manual_seed(0))
    assert_as_good(make(TWO, ("softmax", "squash")), x, device)


def test_peaks_that_rise_and_fall(device: torch.device) -> None:
    """Elements in the order of what a softmax sees, and in the opposite one."""
    block = make([(8, 1), (8, 4)], ("softmax", None), spread=30)
    x = draw(400)[0]
    with torch.no_grad():
        order = block.branches[0](x)[:, 0].argsort()
    assert_as_good(block, torch.stack([x[order], x[order.flip(0)]]), device)


def test_no_element_at_all(device: torch.device) -> None:
    block = make(TWO, ("softmax", None)).to(device)
    for x in (torch.empty(3, 0, 6), torch.empty(0, 5, 6), SetBatch.from_list([torch.empty(0, 6)])):
        x = x.to(device)
        with torch.no_grad():
            y = gpu.aggregate(block, x)
        assert y.shape == (len(x), 100)
        assert not y.any()


def test_weights_of_now(device: torch.device) -> None:
    """Folded weights are kept, but not longer than the weights they are made of."""
    block, x = make(TWO, ("softmax", None)), torch.stack(draw(90))
    assert_as_good(block, x, device)
    with torch.no_grad():
        block.branches[0].linears[0].weight.mul_(2)
    assert_as_good(block, x, device)
    block.branches[1].norms[0].running_mean += 1
    assert_as_good(block, x, device)


def test_other_memory_layouts(device: torch.device) -> None:
    block, x = make(TWO, ("softmax", None)), torch.stack(draw(90, 90))
    assert_as_good(block, x.mT.contiguous().mT, device)
    assert_as_good(block, x.flip(0)[:, ::2], device)
