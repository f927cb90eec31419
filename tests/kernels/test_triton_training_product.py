"""Training of an aggregation block by the kernels against the plain one, both against float64.

`make test-gpu` runs this on the device, `test_interpreted` in Triton's interpreter.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import Tensor

from dumlp_pin import MLP, AggregationBlock, SetBatch, blocks
from dumlp_pin.batchnorm import BatchNorm
from dumlp_pin.kernels import training
from dumlp_pin.kernels.training_aggregation import (
    KNOWN,
    aggregate,
    plain_product,
    why_not_aggregation,
)
from dumlp_pin.kernels.training_ops import Kept, Layer
from tests.kernels.judge import poison_free_memory
from tests.kernels.judge_training import plain_way

pytestmark = pytest.mark.gpu

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture(autouse=True)
def _in_full_precision():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


class Case(NamedTuple):
    """What the kernels of the product get, and how they go about it."""

    z: Tensor  # (2, T, C), before the norms
    statistics: Tensor  # (4, 2, C), of which only means and 1 / standard deviations are read
    affine: Tensor  # (2, 2, C), scales and shifts
    starts: Tensor | None
    sets: int
    activations: Sequence[str]


Numbers = tuple[Tensor, Tensor, Tensor]  # y, its gradients: behind the norms, and of `affine`


def draw(
    sets: int, size: int, columns: int, activations: Sequence[str] = ("softmax", "none")
) -> Case:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2, sets * size, columns, generator=generator)
    statistics = torch.rand(4, 2, columns, generator=generator) + 0.5
    affine = torch.rand(2, 2, columns, generator=generator) + 0.5
    return Case(z, statistics, affine, None, sets, activations)


def packed(case: Case, sizes: Sequence[int]) -> Case:
    """The elements as sets of these sizes."""
    starts = torch.tensor([0, *itertools.accumulate(sizes)])
    return case._replace(starts=starts, sets=len(sizes))


def placed(case: Case, device: torch.device, dtype: torch.dtype = torch.float32) -> Case:
    return case._replace(
        z=case.z.to(device, dtype),
        statistics=case.statistics.to(device),
        affine=case.affine.to(device),
        starts=None if case.starts is None else case.starts.to(device),
    )


def weights_like(y: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.device)


def plain(case: Case, dtype: torch.dtype) -> Numbers:
    wide = torch.promote_types(dtype, torch.float32)
    mean, rstd = case.statistics[:2].to(wide).unsqueeze(2)
    affine = case.affine.to(wide, copy=True).requires_grad_()
    scale, shift = affine.unsqueeze(2)
    factors = ((case.z.to(wide) - mean) * rstd * scale + shift).to(dtype)
    factors.retain_grad()
    y = plain_product(factors, case.starts, case.sets, *case.activations)
    (y.double() * weights_like(y)).sum().backward()
    return y.detach(), cast(Tensor, factors.grad), cast(Tensor, affine.grad)


def fused(case: Case) -> Numbers:
    from dumlp_pin.kernels import training_product_launch as launch

    z, starts, C, (left, right) = case.z, case.starts, case.z.shape[2], case.activations
    layer = Layer(groups=2, K=1, N=C, normed=True)
    kept = Kept(layer, z, z, affine=case.affine, statistics=case.statistics, z=z)
    poison_free_memory(z.device)
    y, sums = z.new_empty(case.sets, C, C), torch.empty(case.sets, C + 4, C, device=z.device)
    launch.forward(kept, starts, left, right, y, sums)
    poison_free_memory(z.device)
    gradients, of_affine = torch.empty_like(z), torch.empty(4 * C, device=z.device)
    y_gradient = weights_like(y).to(y.dtype)
    launch.backward(kept, starts, left, right, sums, y_gradient, gradients, of_affine)
    return y, gradients, of_affine.view(2, 2, C)


def hold_against_plain(
    case: Case,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    roundings: int = 8,
) -> None:
    """Errors are no larger than twice the plain way's, of all sets and factors together.

    The gradient of a softmax is a difference, which may be much smaller than what it is one of: the
    sums of y times its gradient. They are kept in float32, whatever the factors are.
    """
    case = placed(case, device, dtype)
    exact, theirs, ours = plain(case, torch.float64), plain(case, dtype), fused(case)
    eps = torch.finfo(torch.float32).eps
    floor = roundings * eps * (exact[0] * weights_like(exact[0])).norm()
    for truth, other, one in zip(exact, theirs, ours, strict=True):
        assert one.dtype == other.dtype
        assert (one - truth).norm() <= 2 * (other - truth).norm() + floor


@pytest.mark.parametrize("activations", [*itertools.product(KNOWN, repeat=2)], ids="-".join)
def test_every_pair_of_activations(activations: tuple[str, str], device: torch.device) -> None:
    hold_against_plain(draw(1, 130, 5, activations), device)


@DTYPES
@pytest.mark.parametrize("activations", [("softmax", "softmax"), ("elu", "relu")], ids="-".join)
def test_precisions(activations: tuple[str, str], dtype: torch.dtype, device: torch.device) -> None:
    hold_against_plain(draw(2, 200, 32, activations), device, dtype)


SHAPES = [(1, 1, 1), (1, 1, 7), (2, 127, 3), (1, 128, 16), (2, 129, 17), (1, 300, 4), (5, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape: tuple[int, int, int], device: torch.device) -> None:
    """One element, tiles that are full and not."""
    hold_against_plain(draw(*shape, ("softmax", "none")), device)


@pytest.mark.parametrize("sizes", [(70, 0, 1, 140, 0, 64, 1, 0), (4,)], ids=str)
@pytest.mark.parametrize("activations", [("softmax", "none"), ("elu", "softmax")], ids="-".join)
def test_sets_of_different_sizes(
    activations: tuple[str, str], sizes: tuple[int, ...], device: torch.device
) -> None:
    hold_against_plain(packed(draw(1, sum(sizes), 5, activations), sizes), device)


def as_drawn(case: Case) -> Case:
    return case


def in_order(case: Case) -> Case:
    """Peaks that rise to the last element."""
    return case._replace(z=case.z.sort(1).values, affine=case.affine * 30)


def in_opposite_order(case: Case) -> Case:
    return case._replace(z=in_order(case).z.flip(1), affine=case.affine * 30)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dumlp_pin.kernels.training_product_launch.processors", lambda _: 100)
    monkeypatch.setattr("dumlp_pin.kernels.training_product_launch.ROWS_FORWARD", 128)


def assert_several_parts(case: Case) -> None:
    from dumlp_pin.kernels import training_product_launch as launch

    for tiling in (launch.FORWARD, launch.BACKWARD):
        assert launch.parts_of(case.z, case.sets, 2, tiling, 128) > 1


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("change", [in_order, in_opposite_order, as_drawn])
def test_sets_in_several_parts(change: Callable[[Case], Case], device: torch.device) -> None:
    """Some have no element; the last counts alone, or the first, or all do."""
    whole = draw(1, 405, 4, ("softmax", "softmax"))
    for case in (whole, packed(whole._replace(activations=("elu", "softmax")), (5, 0, 400))):
        assert_several_parts(case)
        hold_against_plain(change(case), device)


def large(case: Case) -> Case:
    return case._replace(affine=case.affine * 1e4)


def far_away(case: Case) -> Case:
    return case._replace(affine=case.affine + torch.tensor([0, 1000]).view(2, 1, 1))


def far_below(case: Case) -> Case:
    return case._replace(affine=case.affine - torch.tensor([0, 1000]).view(2, 1, 1))


def far_before_the_norm(case: Case) -> Case:
    mean_alone = torch.tensor([1000, 0, 0, 0]).view(4, 1, 1)
    return case._replace(z=case.z + 1000, statistics=case.statistics + mean_alone)


def equal_elements(case: Case) -> Case:
    """So a softmax has no gradient but rounding's."""
    return case._replace(z=case.z[:, :1].repeat(1, case.z.shape[1], 1))


@DTYPES
@pytest.mark.parametrize(
    "change",
    [
        in_order,
        in_opposite_order,
        large,
        far_away,
        far_below,
        far_before_the_norm,
        equal_elements,
    ],
)
def test_hostile_numbers(
    change: Callable[[Case], Case], dtype: torch.dtype, device: torch.device
) -> None:
    for activations in (("softmax", "none"), ("softmax", "softmax")):
        hold_against_plain(change(draw(1, 200, 4, activations)), device, dtype)


def test_in_tf32(device: torch.device) -> None:
    """Plain products on a CPU know no TF32: bfloat16 with its 3 bits less is the measure."""
    torch.set_float32_matmul_precision("high")
    case = placed(draw(2, 150, 20, ("softmax", "softmax")), device)
    exact, coarse = plain(case, torch.float64), plain(case, torch.bfloat16)
    for truth, other, one in zip(exact, coarse, fused(case), strict=True):
        error = (one - truth).norm() / truth.norm()
        assert 1e-6 < error < (other - truth).norm() / truth.norm() / 3


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in Triton's interpreter
@pytest.mark.parametrize("activation", KNOWN)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_is_no_number_is_seen(activation: str, poison: float, device: torch.device) -> None:
    case = placed(draw(2, 40, 3, (activation, "none")), device)
    case.z[0, 47, 2] = poison
    ours, theirs = fused(case)[0].isfinite(), plain(case, torch.float32)[0].isfinite()
    assert torch.equal(ours, theirs)
    assert not ours.all()


@pytest.mark.usefixtures("small_parts")
def test_same_bits_again(device: torch.device) -> None:
    case = placed(draw(1, 400, 5, ("softmax", "softmax")), device)
    assert_several_parts(case)
    for one, other in zip(fused(case), fused(case), strict=True):
        assert torch.equal(one, other)


def build(activations: Sequence[str | None] = ("softmax", None), **options: Any) -> Any:
    torch.manual_seed(0)
    return AggregationBlock(3, [(8, 5)] * 2, activations, **options)


def forms(device: torch.device) -> tuple[Tensor, SetBatch]:
    x = torch.randn(2, 10, 3).to(device)
    return x, SetBatch(x.flatten(0, 1), torch.tensor([0, 13, 13, 20]).to(device))


def step(block: Any, x: Any) -> tuple[Tensor, Tensor]:
    """The features, and all gradients as one vector."""
    block.zero_grad()
    y = block(x)
    (y.double() * weights_like(y)).sum().backward()
    return y.detach(), torch.cat([cast(Tensor, p.grad).flatten() for p in block.parameters()])


@contextmanager
def everything_plain() -> Iterator[None]:
    with plain_way(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "why_not_aggregation", lambda *_: "the plain product is the measure")
        patch.setattr(training, "why_not_in_training", lambda *_: "and so are plain layers")
        yield


class Second(torch.autograd.Function):
    """Of two tensors; its gradient for the first is None, not zeros."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        return second.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0]


class TestInABlock:
    """The block takes this way."""

    @pytest.mark.parametrize("autocast", [False, True])
    @pytest.mark.parametrize("activations", [("softmax", None), (None, "softmax")], ids=str)
    def test_numbers_and_types_of_the_plain_way(
        self, activations: Sequence[str | None], autocast: bool, device: torch.device
    ) -> None:
        block = build(activations).to(device)
        for sets in forms(device):
            assert why_not_aggregation(block, sets) is None
            with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                ours = step(block, sets)
                with everything_plain():
                    theirs = step(block, sets)
                for one, other in zip(ours, theirs, strict=True):
                    assert one.dtype == other.dtype
                    assert (one - other).norm() <= (0.05 if autocast else 1e-4) * other.norm()

    def test_gradient_of_the_input(self, device: torch.device) -> None:
        block, x = build().to(device), torch.randn(2, 10, 3).to(device)
        found = []
        for way in (nullcontext, everything_plain):
            at = x.clone().requires_grad_()
            with way():
                step(block, at)
            found.append(at.grad)
        torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)

    def test_a_gradient_has_a_gradient(self, device: torch.device) -> None:
        """A penalty on the gradient of the input, say: plain operations take over."""
        block = build(("softmax", "elu")).to(device)
        for sets in forms(device):
            found = []
            for way in (nullcontext, everything_plain):
                block.zero_grad()
                with way():
                    y = block(sets)
                weight = block.branches[0].linears[0].weight
                (gradient,) = torch.autograd.grad(y.square().sum(), weight, create_graph=True)
                gradient.square().sum().backward()
                found.append(block.branches[0].norms[1].weight.grad)
            torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)

    def test_weights_that_are_made_of_the_input(self, device: torch.device) -> None:
        """Of two gradients that meet behind the block, the block gives its own part alone."""
        block, x = build().to(device), torch.randn(20, 3).to(device).requires_grad_()
        sets, name = (
            SetBatch(x, torch.tensor([0, 20]).to(device)),
            "branches.0.linears.0.weight",
        )
        made = {name: block.get_parameter(name).detach() * x.sum(0)}
        found = []
        for way in (nullcontext, everything_plain):
            with way():
                y = torch.func.functional_call(block, made, (sets,))
            loss = (y.double() * weights_like(y)).sum()
            found += torch.autograd.grad(loss, x, create_graph=True)
        torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)

    def test_an_output_of_which_nobody_takes_the_gradient(self, device: torch.device) -> None:
        block, x = build().to(device), torch.randn(1, 10, 3).to(device)
        left, right = block(x), block(x)
        Second.apply(left, right).sum().backward()
        actual = block.branches[0].linears[0].weight.grad.clone()
        block.zero_grad()
        block(x).sum().backward()
        assert torch.equal(actual, block.branches[0].linears[0].weight.grad)

    def test_inside_torch_compile(self, device: torch.device) -> None:
        """As one graph: nothing of the choice or the update of running estimates breaks it."""
        block, x = build().to(device), torch.randn(2, 10, 3).to(device)
        compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
        with torch.autocast(x.device.type, torch.bfloat16):
            for one, other in zip(step(compiled, x), step(block, x), strict=True):
                torch.testing.assert_close(one, other)

    def test_running_estimates_move_once(self, device: torch.device) -> None:
        block, x = build().to(device), torch.randn(2, 10, 3).to(device)
        block(x)
        z, norm = block.branches[1].linears[0](x), block.branches[1].norms[0]
        assert norm.num_batches_tracked == 1
        torch.testing.assert_close(norm.running_mean, 0.1 * z.mean((0, 1)))


@pytest.mark.parametrize("starts", [None, torch.tensor([0, 15, 15, 40])], ids=["equal", "ragged"])
def test_operations_keep_their_promises(starts: Tensor | None, device: torch.device) -> None:
    """What PyTorch asks of an operation: shapes foreseen, gradients registered, no aliases."""
    block, x = build().to(device), torch.randn(40, 3, device=device, requires_grad=True)
    parameters = training.parameters_of(list(block.branches))
    arguments = (
        x,
        torch.cat([p.detach().flatten() for p in parameters]).requires_grad_(),
        None if starts is None else starts.to(device),
        2 if starts is None else 3,
        (3, 8, 5),
        "softmax",
        "none",
        BatchNorm(1).eps,
        torch.float32,
        torch.float32,
    )
    torch.library.opcheck(aggregate, arguments, test_utils=("test_schema", "test_faketensor"))


class TestWhyNot:
    def test_reasons(self, device: torch.device) -> None:
        block, x = build().to(device), torch.randn(2, 10, 3).to(device)
        mask = torch.ones(2, 10, dtype=torch.bool, device=device)
        assert why_not_aggregation(block, x) is None
        assert "padding" in str(why_not_aggregation(block, x, mask))
        assert "not in training" in str(why_not_aggregation(block.eval(), x))
        assert "squash" in str(why_not_aggregation(build(("squash", None)), x))
        one = AggregationBlock(3, [(8, 5)], ("softmax",))
        assert "two factors, not 1" in str(why_not_aggregation(one, x))
        unequal = AggregationBlock(3, [(8, 5), (8, 4)], ("softmax", None))
        assert "widths" in str(why_not_aggregation(unequal, x))
        wide = AggregationBlock(3, [(33,)] * 2, ("softmax", None))
        assert "wider than 32" in str(why_not_aggregation(wide, x))
        shared = build().to(device)
        shared.branches[1] = shared.branches[0]
        assert "share a norm" in str(why_not_aggregation(shared, x))
        bare = build().to(device)
        bare.branches = torch.nn.ModuleList(MLP((3, 8, 5), bare_last=True) for _ in range(2))
        assert "without a batch norm" in str(why_not_aggregation(bare, x))

    def test_wrong_input_is_told_by_the_plain_way(self, device: torch.device) -> None:
        with pytest.raises(ValueError, match=r"sets are \(B, N, F\)"):
            build().to(device)(torch.randn(30, 3).to(device))
