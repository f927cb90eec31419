"""The aggregation block on a GPU against its definition in float64.

`make test-gpu` runs this on the device, `test_interpreted` in Triton's interpreter.
"""

from __future__ import annotations

import pytest
import torch

from dumlp_pin import SetBatch
from dumlp_pin.kernels import gpu
from dumlp_pin.kernels.choose import choose
from tests.kernels.judge import PAIRS, RAGGED, THREE, TWO, assert_as_good, draw, make

pytestmark = pytest.mark.gpu


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


@pytest.mark.parametrize("names", [("softmax", None), ("relu", "elu")])
def test_nan_stays_in_its_set(names: tuple[str | None, ...], device: torch.device) -> None:
    block, sets = make(TWO, names), draw(30, 40, 5)
    sets[1][3] = torch.nan
    with torch.no_grad():
        y = gpu.aggregate(block.to(device), SetBatch.from_list(sets).to(device))
    assert y.isnan().any(1).tolist() == [False, True, False]


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


def test_the_block_takes_this_way(device: torch.device) -> None:
    block, x = make(TWO, ("softmax", None)).to(device), torch.stack(draw(90, 90)).to(device)
    with torch.inference_mode():
        assert choose(block, x).name == "triton"
        assert torch.equal(block(x), gpu.aggregate(block, x))
    assert choose(block, x).name == "plain"
    block.branches[1].linears.append(torch.nn.Linear(20, 20).eval().to(device))
    with torch.inference_mode():
        assert "other widths" in str(gpu.why_not(block, x))
