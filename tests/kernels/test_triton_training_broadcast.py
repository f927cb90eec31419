"""Broadcast blocks trained by the kernels against the plain way, both against float64.

`make test-gpu` runs this on the device, `test_interpreted` in Triton's interpreter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from dumlp_pin import BroadcastBlock, SetBatch, explain
from dumlp_pin._layout import Sets
from dumlp_pin.batchnorm import BatchNorm
from dumlp_pin.kernels.training_broadcast import why_not_broadcast
from tests.kernels.judge_training import Numbers, error, plain_way, weighted, worst_errors

pytestmark = pytest.mark.gpu

Widths = tuple[Sequence[int], Sequence[int], Sequence[int]]


@pytest.fixture(autouse=True)
def _precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def build(widths: Widths = ((5, 8), (4, 6), (12, 7)), cross_term: bool = False) -> BroadcastBlock:
    torch.manual_seed(0)
    block = BroadcastBlock(*widths, cross_term=cross_term)
    for norm in block.modules():
        if isinstance(norm, BatchNorm):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    return block


def draw(
    block: BroadcastBlock, sizes: Sequence[int], device: torch.device, seed: int = 0
) -> tuple[Sets, Tensor]:
    """(B, N, F) where all sets are of one size, else a SetBatch; and the sets' features."""
    torch.manual_seed(seed)
    sets = [torch.randn(size, block.element.widths[0]) for size in sizes]
    y = torch.randn(len(sizes), block.set.widths[0]).to(device)
    if len(set(sizes)) == 1:
        return torch.stack(sets).to(device), y
    return SetBatch.from_list(sets).to(device), y


def step(block: Any, x: Sets, y: Tensor, dtype: torch.dtype, run: Callable[..., Any]) -> Numbers:
    """All that one training step makes, each named by its kind first."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    block = copy.deepcopy(block).to(y.device, wide)
    values = (x.rows if isinstance(x, SetBatch) else x).to(wide, copy=True).requires_grad_()
    x = x.with_rows(values) if isinstance(x, SetBatch) else values
    y = y.to(wide, copy=True).requires_grad_()
    with torch.autocast(y.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        output = run(block, x, y)
    output = output.rows if isinstance(output, SetBatch) else output
    assert output.dtype == dtype
    weighted([output]).backward()
    gradients = {"x": values.grad, "y": y.grad}
    gradients |= {name: parameter.grad for name, parameter in block.named_parameters()}
    numbers = {"output": output.detach()}
    numbers |= {f"gradient of {name}": cast(Tensor, grad) for name, grad in gradients.items()}
    return numbers | {f"running {name}": buffer for name, buffer in block.named_buffers()}


def call(block: Any, x: Sets, y: Tensor) -> Any:
    return block(x, y)


def call_plain(block: Any, x: Sets, y: Tensor) -> Any:
    with plain_way():
        return block(x, y)


def errs_more(block: BroadcastBlock, x: Sets, y: Tensor, dtype: torch.dtype) -> list[str]:
    """The kinds of numbers whose error is more than twice the plain way's."""
    assert why_not_broadcast(block.to(y.device), x) is None
    exact = step(block, x, y, torch.float64, call_plain)
    expected = worst_errors(step(block, x, y, dtype, call_plain), exact)
    actual = worst_errors(step(block, x, y, dtype, call), exact)
    floor = 8 * torch.finfo(dtype).eps
    return [kind for kind, worst in actual.items() if worst > 2 * expected[kind] + floor]


ALIKE, RAGGED = (20, 20, 20, 20), (70, 0, 1, 5, 64, 0)
SHAPES = {
    "of one size": (((5, 8), (4, 6), (12, 7)), ALIKE),
    "of several sizes": (((5, 8), (4, 6), (12, 7)), RAGGED),
    "no element MLP": (((5,), (4, 6), (12, 7)), ALIKE),
    "no set MLP": (((5, 8), (4,), (12, 7)), ALIKE),
    "no combined MLP": (((5, 8, 9), (4, 6), (12,)), RAGGED),
    "nothing but the sum": (((5,), (4,), (12,)), ALIKE),
    "one set": (((5, 8), (4,), (12, 7)), (90,)),
    "sets of one element": (((5, 8), (4, 6), (12, 7)), (1,) * 40),
    "two rows": (((5, 8), (4, 6), (12, 7)), (1, 1)),
    "wide": (((3, 20), (4,), (140, 5)), (16, 16)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_errs_no_more_than_the_plain_way(
    shape: str, dtype: torch.dtype, device: torch.device
) -> None:
    """Or one draw of three in bfloat16: a few rows hang on ReLUs that rounding turns over."""
    widths, sizes = SHAPES[shape]
    block = build(widths)
    seeds = range(3 if dtype == torch.bfloat16 else 1)
    draws = (draw(block, sizes, device, seed) for seed in seeds)
    assert not all(errs_more(block, *drawn, dtype) for drawn in draws)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_at_the_size_of_a_model(dtype: torch.dtype, device: torch.device) -> None:
    """Of MNIST L, where a program has many tiles; in the interpreter a tenth of it."""
    large = device.type == "cuda"
    torch.set_float32_matmul_precision("high" if large else "highest")
    block = build(((128, 128), (64, 128), (256, 128)) if large else ((12, 12), (6, 12), (25, 12)))
    assert not errs_more(block, *draw(block, (784,) * 32 if large else (78,) * 4, device), dtype)


def test_in_tf32(device: torch.device) -> None:
    """Of TF32 plain layers on a CPU know nothing: bfloat16 with its 3 bits less is the measure."""
    torch.set_float32_matmul_precision("high")
    block = build(((20, 24), (4, 6), (32, 7)))
    x, y = draw(block, ALIKE, device)
    exact = step(block, x, y, torch.float64, call_plain)
    coarse = step(block, x, y, torch.bfloat16, call_plain)
    actual = step(block, x, y, torch.float32, call)
    for name in ("output", "gradient of x", "gradient of from_element.weight"):
        assert 1e-5 < error(actual[name], exact[name]) < error(coarse[name], exact[name]) / 3, name


@pytest.mark.parametrize("sizes", [(300, 3), (300, 300)], ids=["of two sizes", "of one size"])
def test_few_sets_of_many_programs(
    sizes: Sequence[int], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dumlp_pin.kernels.training_launch.processors", lambda _: 12)
    block = build(((5,), (4,), (20, 3)))
    assert not errs_more(block, *draw(block, sizes, device), torch.float32)


@pytest.mark.parametrize("sizes", [ALIKE, RAGGED], ids=["of one size", "of several sizes"])
def test_sets_far_apart(sizes: Sequence[int], device: torch.device) -> None:
    """The statistics are those of all rows, though each set's have a place of their own."""
    block = build()
    x, y = draw(block, sizes, device)
    assert not errs_more(block, x, y * 100, torch.float32)


def test_same_bits_again(device: torch.device) -> None:
    block = build()
    x, y = draw(block, RAGGED, device)
    first, second = (step(block, x, y, torch.float32, call) for _ in range(2))
    for name, numbers in first.items():
        assert torch.equal(numbers, second[name]), name


@pytest.mark.parametrize(
    ("sizes", "dtype"), [(ALIKE, torch.bfloat16), (RAGGED, torch.float32)], ids=str
)
def test_inside_torch_compile(
    sizes: Sequence[int], dtype: torch.dtype, device: torch.device
) -> None:
    """As one graph: nothing of the choice or the update of running estimates breaks it."""
    block = build()
    x, y = draw(block, sizes, device)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(block: Any, values: Tensor, offsets: Tensor | None, y: Tensor) -> Any:
        sets = values if offsets is None else SetBatch._trusted(values, offsets)
        output = block(sets, y)
        return output if offsets is None else output.rows

    def run(block: Any, x: Sets, y: Tensor) -> Any:
        given = (x.rows, x.offsets) if isinstance(x, SetBatch) else (x, None)
        return compiled(block, *given, y)

    eager = step(block, x, y, dtype, call)
    for name, numbers in step(block, x, y, dtype, run).items():
        torch.testing.assert_close(numbers, eager[name], msg=name)


@pytest.mark.parametrize("sizes", [ALIKE, RAGGED], ids=["of one size", "of several sizes"])
def test_a_gradient_has_a_gradient(sizes: Sequence[int], device: torch.device) -> None:
    """A penalty on the gradient of the set's feature, say: plain operations take over."""
    block = build().to(device)
    x, y = draw(block, sizes, device)
    found = []
    for run in (call_plain, call):
        ours, at = copy.deepcopy(block), y.clone().requires_grad_()
        output = run(ours, x, at)
        loss = weighted([output.rows if isinstance(output, SetBatch) else output])
        (gradient,) = torch.autograd.grad(loss, at, create_graph=True)
        gradient.square().sum().backward()
        found.append([at.grad, ours.from_element.weight.grad, ours.from_set.weight.grad])
    for expected, actual in zip(*found, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def test_who_needs_no_gradient(device: torch.device) -> None:
    """A set's feature that is data, as an object's category, and elements that are."""
    block = build(((5, 8), (4,), (12, 7))).to(device)
    x, y = draw(block, ALIKE, device)
    block.from_set.requires_grad_(False)
    weighted([block(x, y)]).backward()
    assert block.from_set.weight.grad is None
    actual = block.from_element.weight.grad
    block.zero_grad()
    weighted([call_plain(block, x, y)]).backward()
    torch.testing.assert_close(actual, block.from_element.weight.grad, rtol=1e-3, atol=1e-4)


class TestWhyNot:
    def test_reasons(self, device: torch.device) -> None:
        block = build().to(device)
        x, _ = draw(block, ALIKE, device)
        assert why_not_broadcast(block, x) is None
        assert "padding" in str(why_not_broadcast(block, x, torch.ones(4, 20, dtype=torch.bool)))
        assert "do not fit" in str(why_not_broadcast(block, torch.randn(20, 5)))
        assert "cross term" in str(why_not_broadcast(build(cross_term=True), x))
        wide = build(((5, 8), (4, 6), (1024, 7)))
        replaced = build()
        replaced.from_set = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
        assert "Identity" in str(why_not_broadcast(replaced, x))
        assert "wider than 256" in str(why_not_broadcast(wide, x))
        assert "not in training" in str(why_not_broadcast(block.eval(), x))

    @pytest.mark.parametrize("part", ["element", "from_element", "norm", "combined"])
    def test_a_hook(self, part: str, device: torch.device) -> None:
        block = build().to(device)
        x, y = draw(block, ALIKE, device)
        seen = []
        module = getattr(block, part)
        module.register_forward_hook(lambda *_: seen.append(part))
        assert "has a hook" in str(why_not_broadcast(block, x))
        block(x, y)
        assert seen == [part]

    def test_a_norm_of_its_own(self, device: torch.device) -> None:
        block = build().to(device)
        x, _ = draw(block, ALIKE, device)
        assert block.norm is not None
        block.norm.momentum = 0.5
        assert "momentum" in str(why_not_broadcast(block, x))
        block.norm.momentum, block.norm.synchronised = BatchNorm.MOMENTUM, True
        assert "other processes" in str(why_not_broadcast(block, x))


def test_explain_tells(device: torch.device) -> None:
    block = build().to(device)
    x, y = draw(block, ALIKE, device)
    assert explain(block, x, y)[""].name == "triton"
    mask = torch.ones(4, 20, dtype=torch.bool, device=device)
    assert "padding" in explain(block, x, y, mask)[""].reason
