"""The broadcast block on a GPU against its definition in float64.

`make test-gpu` runs this on the device, `test_interpreted` in Triton's interpreter.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dumlp_pin import BroadcastBlock, create_model, explain
from dumlp_pin.kernels import gpu, gpu_broadcast
from dumlp_pin.kernels._triton import INTERPRETED
from dumlp_pin.kernels.choose import choose
from dumlp_pin.models.networks import StageBlock
from tests.contract import Sample, Subject
from tests.kernels.judge import poison_free_memory

pytestmark = pytest.mark.gpu

# Tiles that are full and not, with several sets, of one set, without elements of it.
SIZES = (0, 40, 0, 1, 5, 0, 32, 0)
USUAL = ((6, 16), (4, 8), (16, 5))
BROADCASTS = {
    "usual": USUAL,
    "bare": ((6,), (4,), (16,)),
    "deep": ((6, 20, 9, 40), (4, 4), (12, 30, 3)),
    "in chunks": ((6, 20), (4, 7), (40, 9)),
    "chunks written": ((6,), (4,), (40,)),
    "chunks, then more": ((6,), (4,), (33, 17, 4)),
}
# Those that a model has, by its name and the number of its stage.
STAGES = [
    ("dumlp_pin_mnist_l", 0),
    ("dumlp_pin_mnist_l", 1),
    ("dumlp_pin_shapenetpart_l", 0),
    ("dumlp_pin_shapenetpart_l", 1),
    ("dumlp_pin_scannet_l", 0),
    ("dumlp_pin_scannet_l", 1),
    ("dumlp_pin_scannet_l", 2),
]


# What matrix units round of float32. PyTorch rounds nothing where there are few columns.
EPS = {torch.bfloat16: 2**-7, torch.float32: 2**-23 if INTERPRETED else 2**-11}


@pytest.fixture(autouse=True)
def tf32_products() -> Iterator[None]:
    """At "highest" no matrix unit is asked, and no kernel."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def subject_of(widths: Any) -> Any:
    return Subject("", lambda: BroadcastBlock(*widths), widths[0][:1], True, widths[1][0])


def widths_of(block: BroadcastBlock) -> Any:
    return block.element.widths, block.set.widths, block.combined.widths


def forms_of(sample: Sample) -> list[dict[str, Any]]:
    forms = [sample.packed(), sample.masked(torch.nan, extra=3)]
    return forms if len(set(sample.sizes)) > 1 else [*forms, sample.dense()]


def assert_as_good(
    widths: Any,
    sizes: tuple[int, ...],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    spread: float = 1,
) -> None:
    """In all forms of sets an error no larger than twice the plain path's, set by set."""
    subject = subject_of(widths)
    block: Any = subject.build(dtype=dtype).to(device)
    block.norm.weight.data *= spread
    block.norm.bias.data *= spread
    exact_block = copy.deepcopy(block).double()
    sample = subject.draw(list(sizes), dtype=dtype)
    floor = 4 * EPS[dtype]
    for form in forms_of(sample):
        given = {name: value.to(device) for name, value in form.items()}
        wide = {name: v if name == "mask" else v.to(torch.float64) for name, v in given.items()}
        exact = subject.per_set(exact_block(**wide), sample.sizes)
        plain = subject.per_set(block(**given), sample.sizes)  # gradients may be asked for here
        with torch.no_grad():
            assert choose(block, **given).name == "triton"
            poison_free_memory(device)
            z = gpu.broadcast(block, **given)
        for b, fast in enumerate(subject.per_set(z, sample.sizes)):
            assert fast.dtype == dtype
            allowed = 2 * (plain[b] - exact[b]).norm() + floor * exact[b].norm()
            assert (fast - exact[b]).norm() <= allowed, (list(given), b)
        if "mask" in given:
            assert z.shape == (*given["mask"].shape, block.out_features)
            assert not z[~given["mask"]].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("widths", BROADCASTS.values(), ids=BROADCASTS.keys())
def test_widths_and_types(widths: Any, dtype: torch.dtype, device: torch.device) -> None:
    assert_as_good(widths, SIZES, device, dtype)


@pytest.mark.parametrize("sizes", [(1,), (64,), (65,), (45, 45, 45), (3,) * 40, (0, 0, 7)])
def test_sizes(sizes: tuple[int, ...], device: torch.device) -> None:
    """One set, several of one tile, several tiles of one set."""
    assert_as_good(USUAL, sizes, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("model", "number"), STAGES)
def test_every_stage_of_our_models(
    model: str, number: int, dtype: torch.dtype, device: torch.device
) -> None:
    stage: Any = create_model(model).stages[number]
    assert isinstance(stage, StageBlock)
    # More tiles than programs at once on a GPU.
    sizes = (40, 1) if INTERPRETED else (700, 0, 20_000, 1)
    assert_as_good(widths_of(stage.broadcast), sizes, device, dtype)


@pytest.mark.parametrize("spread", [1e-3, 1e4])
@pytest.mark.parametrize("name", ["usual", "in chunks"])
def test_small_and_large_numbers(name: str, spread: float, device: torch.device) -> None:
    assert_as_good(BROADCASTS[name], (40, 5), device, spread=spread)


def test_nan_stays_in_its_element(device: torch.device) -> None:
    subject = subject_of(BROADCASTS["in chunks"])
    block, sample = subject.build(dtype=torch.float32), subject.draw([70], dtype=torch.float32)
    sample.sets[0][3, 1] = torch.nan
    with torch.no_grad():
        z = gpu.broadcast(block.to(device), sample.sets[0][None].to(device), **to(sample, device))
    assert z.isnan().any(2).nonzero().tolist() == [[0, 3]]


def to(sample: Sample, device: torch.device) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in sample.given.items()}


def test_no_element_at_all(device: torch.device) -> None:
    block = BroadcastBlock(*USUAL).eval().to(device)
    for x in (torch.empty(3, 0, 6), torch.empty(0, 5, 6)):
        y = torch.rand(len(x), 4, device=device)
        with torch.no_grad():
            assert gpu.broadcast(block, x.to(device), y).shape == (*x.shape[:2], 5)


def test_other_memory_layouts(device: torch.device) -> None:
    block, x = BroadcastBlock(*USUAL).eval().to(device), torch.randn(4, 90, 6, device=device)
    y = torch.randn(4, 4, device=device)
    with torch.no_grad():
        for view in (x.mT.contiguous().mT, x.flip(0)[:, ::2]):
            expected = gpu.broadcast(block, view.clone(memory_format=torch.contiguous_format), y)
            assert torch.equal(gpu.broadcast(block, view, y), expected)


@torch.no_grad()
def test_weights_of_now(device: torch.device) -> None:
    """Folded weights are kept, but not longer than the weights they are made of."""
    subject = subject_of(USUAL)
    block: Any = subject.build(dtype=torch.float32).to(device)
    given = {"x": torch.randn(1, 70, 6, device=device), "y": torch.randn(1, 4, device=device)}
    before = block(**given)
    for change in (
        lambda: block.element.linears[0].weight.mul_(2),
        lambda: block.set.norms[0].running_mean.sub_(1),
        lambda: block.from_set.weight.mul_(2),
        lambda: block.norm.running_var.mul_(2),
    ):
        change()
        after = block(**given)
        assert not torch.allclose(after, before, rtol=0.01)
        with torch.enable_grad():
            torch.testing.assert_close(after, block(**given).detach(), rtol=0.01, atol=0.01)
        before = after


def test_what_the_kernel_was_not_made_for(device: torch.device) -> None:
    def reason(*widths: tuple[int, ...], cross_term: bool = False) -> str | None:
        block = BroadcastBlock(*widths, cross_term=cross_term).eval().to(device)
        return gpu.why_not(block, torch.rand(1, 7, widths[0][0], device=device))

    assert reason(*USUAL) is None
    assert reason((6, 8), (4,), (16, 5), cross_term=True) == "the cross term has no faster way"
    for widest, widths in {200: ((6, 200), (4,), (16, 5)), 300: ((6,), (4,), (16, 300))}.items():
        assert f"in registers: {widest}" in str(reason(*widths))
    memory = reason((6,), (4,), (16, *[256] * 6))
    assert memory == "the weights need more than a multiprocessor's memory"
    replaced: Any = BroadcastBlock(*USUAL).eval().to(device)
    replaced.element.linears[0] = torch.nn.Linear(6, 15).eval().to(device)
    assert "other widths" in str(gpu.why_not(replaced, torch.rand(1, 7, 6, device=device)))
    if not INTERPRETED:  # where matrix units are not asked how they multiply
        torch.set_float32_matmul_precision("highest")
        assert str(reason(*USUAL)).startswith("float32 at 'highest' keeps digits")


def test_every_block_of_a_model_takes_this_way(device: torch.device) -> None:
    model = create_model("dumlp_pin_shapenetpart_l").eval().to(device)
    model, x = model.bfloat16(), torch.randn(2, 5, 3, device=device).bfloat16()
    category = torch.tensor([3, 7], device=device)
    with torch.inference_mode():
        assert {path.name for path in explain(model, x, category).values()} == {"triton"}


def test_chunks_of_z_are_what_makes_it_fit() -> None:
    """The weights around a wide z are never kept in shared memory as a whole."""
    wide = gpu_broadcast.Shape((128, 128), (1024, 256), torch.bfloat16, "bf16")
    kept, *others = gpu_broadcast.PLANS["bf16"]
    h200 = 232_448
    assert wide.shared_bytes(kept) > h200
    assert all(wide.shared_bytes(plan) <= h200 for plan in others)
