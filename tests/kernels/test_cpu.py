"""The blocks in inference on a processor against their definition in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dumlp_pin import BroadcastBlock, SetBatch
from dumlp_pin.kernels import cpu, linear, runs
from dumlp_pin.kernels.choose import Path, choose
from tests.contract import Subject
from tests.kernels.judge import PAIRS, RAGGED, THREE, TWO, assert_as_good, draw, make

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that sets of a test's size come in several runs, and the largest in parts."""
    monkeypatch.setattr(cpu, "ROWS", dict.fromkeys(cpu.ROWS, -(-100 // torch.get_num_threads())))
    monkeypatch.setattr(runs, "FEW", 8)


@pytest.fixture(params=["fused", "many and few", "public"])
def _operations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the operations that layers are made of, wherever this is tested."""
    if request.param == "public":
        monkeypatch.setattr(linear, "fused", lambda _: None)
    elif request.param == "fused":
        if linear.fused(torch.float32) is None:
            pytest.skip("this PyTorch has no fused layers")
        monkeypatch.setattr(linear, "MANY", 0)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_pair_of_activations(pair: tuple[str, str]) -> None:
    assert_as_good(make(TWO, pair), SetBatch.from_list(draw(*RAGGED)), CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("names", [("softmax",), ("squash",), ("softmax", None), ("relu",) * 3])
@pytest.mark.usefixtures("_operations")
def test_orders_and_types(names: tuple[str | None, ...], dtype: torch.dtype) -> None:
    branches = {1: [(32, 5)], 2: TWO, 3: THREE}[len(names)]
    x = SetBatch.from_list(draw(*RAGGED)).to(dtype)
    assert_as_good(make(branches, names, dtype), x, CPU)


@pytest.mark.parametrize("names", [(None,) * 4, ("softmax", "squash", None, "elu")])
def test_four_factors(names: tuple[str | None, ...]) -> None:
    assert_as_good(make([(3,), (2,), (4,), (8, 3)], names), torch.stack(draw(90, 90)), CPU)


@pytest.mark.parametrize("branches", [[(3,), (4,)], [(20, 7, 40), (9,)], [(17, 64), (3, 3, 3, 3)]])
def test_depths_and_widths(branches: list[tuple[int, ...]]) -> None:
    assert_as_good(make(branches, ("softmax", "elu")), torch.stack(draw(90, 90)), CPU)


@pytest.mark.parametrize("sizes", [(1,), (100,), (101,), (1000,), (3,) * 70, (129,) * 4, (7, 99)])
def test_sizes(sizes: tuple[int, ...]) -> None:
    """One set of a run, many of it, and the parts of one."""
    block, sets = make(TWO, ("softmax", "squash")), draw(*sizes)
    if len(set(sizes)) == 1:
        assert_as_good(block, torch.stack(sets), CPU)
    assert_as_good(block, SetBatch.from_list(sets), CPU)


def test_padding_never_matters() -> None:
    x, mask = SetBatch.from_list(draw(*RAGGED)).to_padded()
    x = torch.where(mask[..., None], x, torch.nan)
    holes = mask & (torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) < 0.7)
    for activations in (("softmax", None), ("squash", "elu")):
        block = make(TWO, activations)
        assert_as_good(block, x, CPU, mask)
        assert_as_good(block, torch.where(holes[..., None], x, torch.nan), CPU, holes)


def test_nan_stays_in_its_set() -> None:
    block, sets = make(TWO, ("softmax", None)), draw(30, 40, 5)
    sets[1][3] = torch.nan
    with torch.no_grad():
        y = cpu.aggregate(block, SetBatch.from_list(sets))
    assert y.isnan().any(1).tolist() == [False, True, False]


@pytest.mark.parametrize("spread", [1e-3, 1e2, 1e4])
@pytest.mark.parametrize("names", [("softmax", "none"), ("softmax", "elu"), ("squash", "relu")])
def test_small_and_large_numbers(names: tuple[str, str], spread: float) -> None:
    assert_as_good(make(TWO, names, spread=spread), SetBatch.from_list(draw(*RAGGED)), CPU)


def test_equal_elements() -> None:
    x = torch.ones(2, 500, 6) * torch.randn(2, 1, 6, generator=torch.Generator().manual_seed(0))
    assert_as_good(make(TWO, ("softmax", "squash")), x, CPU)


def test_peaks_that_rise_and_fall() -> None:
    """Elements in the order of what a softmax sees, and in the opposite one."""
    block = make([(8, 1), (8, 4)], ("softmax", None), spread=30)
    x = draw(400)[0]
    order = block.branches[0](x)[:, 0].argsort()
    assert_as_good(block, torch.stack([x[order], x[order.flip(0)]]), CPU)


def test_no_element_at_all() -> None:
    block = make(TWO, ("softmax", None))
    for x in (torch.empty(3, 0, 6), torch.empty(0, 5, 6), SetBatch.from_list([torch.empty(0, 6)])):
        with torch.no_grad():
            y = cpu.aggregate(block, x)
        assert y.shape == (len(x), 100)
        assert not y.any()


def test_other_memory_layouts() -> None:
    block, x = make(TWO, ("softmax", None)), torch.stack(draw(90, 90))
    assert_as_good(block, x.mT.contiguous().mT, CPU)
    assert_as_good(block, x.flip(0)[:, ::2], CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("names", [("softmax", "none"), ("squash", "relu"), ("relu", "none")])
def test_many_elements(
    names: tuple[str, str], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of the size that it has, as one set among others."""
    monkeypatch.undo()
    sizes = (2 * cpu.ROWS[dtype] * torch.get_num_threads() + 1, 1, 3000)
    x = SetBatch.from_list(draw(*sizes)).to(dtype)
    assert_as_good(make([(8, 4), (8, 3)], names, dtype), x, CPU)


BROADCASTS = {
    "usual": ((6, 16), (4, 8), (16, 5)),
    "bare": ((6,), (4,), (16,)),
    "deep": ((6, 20, 9, 40), (4, 4), (12, 30, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("widths", BROADCASTS.values(), ids=BROADCASTS.keys())
@pytest.mark.usefixtures("_operations")
def test_broadcast(widths: Any, dtype: torch.dtype) -> None:
    """In all forms of sets an error no larger than twice the plain path's."""
    subject = Subject("", lambda: BroadcastBlock(*widths), (6,), True, set_features=4)
    block: Any = subject.build(dtype=dtype)
    for sizes in (list(RAGGED), [90, 90, 90]):
        sample = subject.draw(sizes, dtype=dtype)
        exact = subject.build()(**subject.draw(sizes).packed()).rows.detach()
        plain = (block(**sample.packed()).rows.detach() - exact).norm()
        allowed = 2 * plain + 4 * torch.finfo(dtype).eps * exact.norm()
        forms = [sample.packed(), sample.masked(torch.nan)]
        for form in forms if 0 in sizes else [*forms, sample.dense()]:
            with torch.no_grad():
                z = cpu.broadcast(block, **form)
                assert choose(block, **form).name == "cpu"
                taken = block(**form)
            rows = torch.cat(subject.per_set(z, sizes))
            assert rows.dtype == dtype
            assert (rows - exact).norm() <= allowed
            assert torch.equal(torch.cat(subject.per_set(taken, sizes)), rows)
            if "mask" in form:
                assert z.shape == (*form["mask"].shape, widths[2][-1])
                assert not z[~form["mask"]].any()


def test_broadcast_to_no_element_at_all() -> None:
    block = BroadcastBlock((6, 16), (4, 8), (16, 5)).eval()
    with torch.no_grad():
        for x in (torch.empty(3, 0, 6), torch.empty(0, 5, 6)):
            assert cpu.broadcast(block, x, torch.rand(len(x), 4)).shape == (*x.shape[:2], 5)


def test_a_cross_term_is_left_to_the_definition() -> None:
    block = BroadcastBlock((6, 8), (4,), (16, 5), cross_term=True).eval()
    x, y = torch.stack(draw(7, 7)), torch.rand(2, 4)
    with torch.no_grad():
        assert choose(block, x, y=y) == Path("plain", "the cross term has no faster way")
        assert block(x, y).shape == (2, 7, 5)


class Largest(TorchDispatchMode):
    """How many bytes the largest tensor has that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.bytes = max(self.bytes, result.nbytes)
        return result


@pytest.mark.parametrize("sizes", [(50_000,), (5,) * 10_000, (100, 0, 49_900)])
def test_sets_of_any_size_and_number_take_as_much_memory(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cpu.ROWS, torch.float32, 1000)
    block, x = make([(128, 2), (128, 2)], ("softmax", None)), SetBatch.from_list(draw(*sizes))
    with torch.no_grad():
        cpu.aggregate(block, x.rows[None, :1])  # packs the weights
        with Largest() as largest:
            cpu.aggregate(block, x)
    assert largest.bytes <= max(1000 * torch.get_num_threads() * 128 * 4, x.rows.nbytes)


def test_packed_layers_of_a_type_stay_as_they_are() -> None:
    """Packing takes copies: the weights of the block are not touched."""
    block = make(TWO, ("softmax", None))
    before = copy.deepcopy(block.state_dict())
    with torch.no_grad():
        cpu.aggregate(block, torch.stack(draw(90)))
    for name, value in block.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_private_operation_that_is_gone_is_not_missed(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear.fused.cache_clear()
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    try:
        assert linear.fused(dtype) is None
        x = SetBatch.from_list(draw(*RAGGED)).to(dtype)
        assert_as_good(make(TWO, ("softmax", None), dtype), x, CPU)
    finally:
        linear.fused.cache_clear()
