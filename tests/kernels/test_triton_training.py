"""MLPs trained by the kernels against the plain ones, both against float64.

`make test-gpu` runs this on the device, `test_interpreted` in Triton's interpreter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from dumlp_pin import MLP
from dumlp_pin.batchnorm import BatchNorm
from dumlp_pin.functional import dot_product, set_softmax
from dumlp_pin.kernels import _triton, training
from dumlp_pin.kernels.training import outputs_in_training, why_not_in_training
from dumlp_pin.kernels.training_ops import mlps_forward
from tests.kernels.judge_training import Numbers, error, plain_way, weighted, worst_errors

Run = Callable[[Any, Tensor], Sequence[Tensor]]


pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _precision_stays():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def build(widths: Sequence[int], count: int, bare_last: bool = False) -> Any:
    torch.manual_seed(0)
    mlps = nn.ModuleList(MLP(widths, bare_last=bare_last) for _ in range(count))
    for norm in mlps.modules():
        if isinstance(norm, BatchNorm):
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    return mlps


def plain(mlps: Sequence[MLP], x: Tensor) -> Sequence[Tensor]:
    with plain_way():
        return [mlp(x) for mlp in mlps]


def step(
    run: Run,
    mlps: Any,
    x: Tensor,
    dtype: torch.dtype,
    loss: Callable[[Sequence[Tensor]], Tensor] = weighted,
) -> Numbers:
    """All that one training step makes, each named by its kind first."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    mlps = copy.deepcopy(mlps).to(x.device, wide)
    x = x.to(wide, copy=True).requires_grad_()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        outputs = run(list(mlps), x)
    assert {y.dtype for y in outputs} == {dtype}
    loss(outputs).backward()
    numbers = {f"output {index}": y.detach() for index, y in enumerate(outputs)}
    numbers["gradient of x"] = cast(Tensor, x.grad)
    numbers |= {f"gradient of {name}": cast(Tensor, p.grad) for name, p in mlps.named_parameters()}
    return numbers | {f"running {name}": buffer for name, buffer in mlps.named_buffers()}


def errs_more(
    mlps: Any,
    x: Tensor,
    dtype: torch.dtype = torch.float32,
    loss: Callable[[Sequence[Tensor]], Tensor] = weighted,
) -> list[str]:
    """The kinds of numbers whose error is more than twice that of plain layers."""
    assert why_not_in_training(mlps[0], x) is None
    exact = step(plain, mlps, x, torch.float64, loss)
    expected = worst_errors(step(plain, mlps, x, dtype, loss), exact)
    actual = worst_errors(step(outputs_in_training, mlps, x, dtype, loss), exact)
    floor = 16 * torch.finfo(dtype).eps
    return [kind for kind, worst in actual.items() if worst > 2 * expected[kind] + floor]


def three_draws(rows: int, features: int, device: torch.device) -> list[Tensor]:
    """One has to do: a gradient of few rows may vanish, or hang on how one ReLU's input rounds."""
    return [torch.randn(rows, features).to(device) for _ in range(3)]


SHAPES = {
    "one layer": ((5, 7), 1, 40, False),
    "two branches": ((6, 20, 9, 4), 2, 75, False),
    "bare last": ((3, 16, 5), 1, 64, True),
    "bare last, two": ((3, 16, 5), 2, 33, True),
    "one layer, two": ((5, 7), 2, 40, False),
    "wide": ((70, 128, 3), 1, 70, False),
    "in several parts": ((140, 200, 3), 1, 40, False),
    "one feature": ((1, 1, 1), 2, 50, False),
    "two rows": ((6, 8, 4), 2, 2, False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_errs_no_more_than_plain_layers(
    shape: str, dtype: torch.dtype, device: torch.device
) -> None:
    torch.set_float32_matmul_precision("highest")
    widths, count, rows, bare_last = SHAPES[shape]
    mlps = build(widths, count, bare_last)
    assert not all(errs_more(mlps, x, dtype) for x in three_draws(rows, widths[0], device))


def test_in_tf32(device: torch.device) -> None:
    """Of TF32 plain layers on a CPU know nothing: bfloat16 with its 3 bits less is the measure."""
    torch.set_float32_matmul_precision("high")
    mlps, x = build((6, 20, 9, 4), 2), torch.randn(75, 6).to(device)
    exact = step(plain, mlps, x, torch.float64)
    coarse = step(plain, mlps, x, torch.bfloat16)
    actual = step(outputs_in_training, mlps, x, torch.float32)
    for name in ("output 0", "output 1", "gradient of 1.linears.2.weight"):
        assert 1e-5 < error(actual[name], exact[name]) < error(coarse[name], exact[name]) / 3, name


def far_away(x: Tensor) -> Tensor:
    return x + 1000


def constant_columns(x: Tensor) -> Tensor:
    x[:, ::2] = 3.7
    return x


def one_outlier(x: Tensor) -> Tensor:
    x[-1] = 1e4
    return x


def in_order(x: Tensor) -> Tensor:
    """Programs that see some of the rows see very different ones."""
    return x.sort(0).values * 100


@pytest.mark.parametrize("change", [far_away, constant_columns, one_outlier, in_order])
def test_hostile_inputs(change: Callable[[Tensor], Tensor], device: torch.device) -> None:
    torch.set_float32_matmul_precision("highest")
    mlps = build((6, 20, 9, 4), 2)
    assert not errs_more(mlps, change(torch.randn(200, 6)).to(device))


def test_relus_that_are_dead(device: torch.device) -> None:
    mlps = build((6, 20, 4), 1)
    norm = mlps[0].norms[0]
    nn.init.constant_(norm.bias, -100)
    nn.init.zeros_(norm.bias[:3])
    assert not errs_more(mlps, torch.randn(50, 6).to(device))


def test_behind_a_set_softmax(device: torch.device) -> None:
    def loss(outputs: Sequence[Tensor]) -> Tensor:
        left, right = (y.double().unflatten(0, (5, 12)) for y in outputs)
        return dot_product([set_softmax(left), right]).square().sum()

    mlps = build((6, 20, 4), 2)
    assert not all(errs_more(mlps, x, loss=loss) for x in three_draws(60, 6, device))


def test_every_row_counts_once(device: torch.device) -> None:
    """However rows are shared among programs: statistics are those of all rows."""
    for rows in (31, 32, 33, 64, 65, 129):
        x = torch.randn(rows, 3).to(device)
        mlp = build((3, 4), 1)[0].to(device)
        outputs_in_training([mlp], x)
        z = mlp.linears[0](x)
        torch.testing.assert_close(mlp.norms[0].running_mean, 0.1 * z.mean(0))
        torch.testing.assert_close(mlp.norms[0].running_var, 0.9 + 0.1 * z.var(0))


def test_same_bits_again(device: torch.device) -> None:
    mlps, x = build((6, 20, 4), 2), torch.randn(200, 6).to(device)
    first, second = (step(outputs_in_training, mlps, x, torch.float32) for _ in range(2))
    for name, numbers in first.items():
        assert torch.equal(numbers, second[name]), name


def test_each_mlp_its_own_input(device: torch.device) -> None:
    """(G, rows, F): each of the MLPs reads other rows than the others."""
    widths, count = (6, 20, 4), 2
    mlps, x = build(widths, count).to(device), torch.randn(count, 70, 6).to(device)
    x.requires_grad_()
    parameters = torch.cat([p.flatten() for p in training.parameters_of(list(mlps))])
    structure = widths, 2, count, 0, False, BatchNorm(1).eps, torch.float32
    y, _, _ = mlps_forward(x, parameters, None, None, *structure)
    actual = torch.autograd.grad(weighted(list(y)), [x, *mlps.parameters()])
    outputs = [mlp(rows) for mlp, rows in zip(mlps, x, strict=True)]
    expected = torch.autograd.grad(weighted(outputs), [x, *mlps.parameters()])
    torch.testing.assert_close(list(y), outputs)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_mlps_that_do_not_run_side_by_side(device: torch.device) -> None:
    torch.manual_seed(0)
    mlps: Any = nn.ModuleList([MLP((6, 8, 4)), MLP((6, 3))])
    assert not training.can_run_side_by_side(list(mlps))
    assert not errs_more(mlps, torch.randn(50, 6).to(device))
    one = build((6, 8, 4), 1)[0].to(device)
    assert not training.can_run_side_by_side([one, one])  # its estimates move twice, in turn
    outputs_in_training([one, one], torch.randn(50, 6).to(device))
    assert one.norms[0].num_batches_tracked == 2


def test_any_shape_of_input(device: torch.device) -> None:
    mlp, x = build((6, 8, 4), 1)[0].to(device), torch.randn(3, 20, 6).to(device)
    [y] = outputs_in_training([mlp], x)
    torch.testing.assert_close(y, mlp(x))
    [y] = outputs_in_training([mlp], x.transpose(0, 1))
    torch.testing.assert_close(y, mlp(x.transpose(0, 1)))


def test_inside_torch_compile(device: torch.device) -> None:
    """As one graph: nothing of the choice or the update of running estimates breaks it."""
    mlps, x = build((6, 8, 4), 2), torch.randn(40, 6).to(device)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compiled(mlps: Sequence[MLP], x: Tensor) -> Sequence[Tensor]:
        assert why_not_in_training(mlps[0], x) is None
        return outputs_in_training(mlps, x)

    for dtype in (torch.float32, torch.bfloat16):
        eager = step(outputs_in_training, mlps, x, dtype)
        for name, numbers in step(compiled, mlps, x, dtype).items():
            torch.testing.assert_close(numbers, eager[name], msg=name)


def test_operations_keep_their_promises(device: torch.device) -> None:
    """What PyTorch asks of an operation: shapes foreseen, gradients registered, no aliases."""
    mlps = build((3, 8, 4), 2).to(device)
    parameters = torch.cat([p.detach().flatten() for p in training.parameters_of(list(mlps))])
    x = torch.randn(40, 3, device=device, requires_grad=True)
    structure = (3, 8, 4), 2, 2, 0, False, 1e-5, torch.float32
    arguments = x, parameters.requires_grad_(), None, None, *structure
    torch.library.opcheck(mlps_forward, arguments, test_utils=("test_schema", "test_faketensor"))


def _without_bias(mlp: Any) -> None:
    mlp.linears[1].bias = None


def _wider(mlp: Any) -> None:
    mlp.linears[0], mlp.norms[0], mlp.linears[1] = nn.Linear(6, 9), BatchNorm(9), nn.Linear(9, 4)


def _wrapped(mlp: Any) -> None:
    mlp.linears[0].forward = mlp.linears[0].forward


class Own(Tensor):
    pass


def _of_another_type(mlp: Any) -> None:
    mlp.linears[0].weight = nn.Parameter(mlp.linears[0].weight.detach().as_subclass(Own))


def _hooked(mlp: Any) -> None:
    mlp.linears[0].register_full_backward_pre_hook(lambda *_: None)


def _norms_in_one(mlp: Any) -> None:
    mlp.norms[1] = mlp.norms[0]


CHANGES: dict[str, Callable[[MLP], None]] = {
    "no bias": _without_bias,
    "other widths": _wider,
    "forward of its own": _wrapped,
    "Own computes in a way of its own": _of_another_type,
    "has a hook": _hooked,
    "used twice": _norms_in_one,
}


class TestWhyNot:
    def test_reasons(self, device: torch.device) -> None:
        mlp, x = MLP((6, 8, 4)).to(device), torch.randn(40, 6).to(device)
        assert why_not_in_training(mlp, x) is None
        assert "padding" in str(why_not_in_training(mlp, x, torch.ones(1, 40, dtype=torch.bool)))
        assert "two rows" in str(why_not_in_training(mlp, x[:1]))
        assert "float64" in str(why_not_in_training(mlp.double(), x.double()))
        assert "not in training" in str(why_not_in_training(mlp.float().eval(), x))
        assert "no batch norm" in str(why_not_in_training(MLP((6,)), x))
        assert "no batch norm" in str(why_not_in_training(MLP((6, 4), bare_last=True), x))

    @pytest.mark.parametrize("reason", CHANGES)
    def test_a_layer_that_somebody_changed(self, reason: str, device: torch.device) -> None:
        mlp, x = MLP((6, 8, 4)).to(device), torch.randn(40, 6).to(device)
        CHANGES[reason](mlp)
        assert reason in str(why_not_in_training(mlp, x))

    def test_types_that_plain_layers_do_not_mix(self, device: torch.device) -> None:
        mlp, x = MLP((6, 8, 4)).to(device), torch.randn(40, 6).to(device)
        assert "not as the input" in str(why_not_in_training(mlp, x.bfloat16()))
        with torch.autocast(device.type, torch.bfloat16):
            assert why_not_in_training(mlp, x.bfloat16()) is None

    def test_a_hook_on_all_modules(self, device: torch.device) -> None:
        mlp, x = MLP((6, 8, 4)).to(device), torch.randn(40, 6).to(device)
        seen: list[nn.Module] = []
        with register_module_forward_hook(lambda module, *_: seen.append(module)):
            mlp(x)
        assert set(mlp.linears) < set(seen)

    def test_other_processes(self, device: torch.device) -> None:
        mlp, x = build((6, 8, 4), 1)[0].to(device), torch.randn(40, 6).to(device)
        for norm in mlp.norms:
            norm.synchronised = True
        assert "other processes" in str(why_not_in_training(mlp, x))


def test_without_a_gpu_plain_layers_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_triton, "INTERPRETED", False)
    assert "on cpu" in str(why_not_in_training(MLP((6, 4)), torch.randn(40, 6)))


def test_no_gradient_of_a_bias_before_a_norm(device: torch.device) -> None:
    numbers = step(
        outputs_in_training, build((6, 8, 4), 1), torch.randn(40, 6).to(device), torch.float32
    )
    assert not numbers["gradient of 0.linears.0.bias"].any()
    assert not numbers["gradient of 0.linears.1.bias"].any()


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "norms alone in float32"])
def test_a_gradient_has_a_gradient(mixed: bool, device: torch.device) -> None:
    """A penalty on the gradient of the input, say: plain operations take over."""
    mlps, x = build((3, 8, 4), 2), torch.randn(30, 3).to(device)
    if mixed:  # as who trains in half precision may have it
        mlps, x = mlps.bfloat16(), x.bfloat16()
        for mlp in mlps:
            mlp.norms.float()

    def penalty(outputs: Sequence[Tensor], x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(weighted(outputs), x, create_graph=True)
        return gradient.square().sum()

    def gradients(run: Run, mlps: Any, x: Tensor) -> list[Tensor]:
        mlps, x = copy.deepcopy(mlps).to(x.device), x.clone().requires_grad_()
        penalty(run(list(mlps), x), x).backward()
        weights = [cast(Tensor, layer.weight.grad) for mlp in mlps for layer in mlp.linears]
        return [cast(Tensor, x.grad), *weights]

    exact = gradients(plain, copy.deepcopy(mlps).double(), x.double())
    expected, actual = gradients(plain, mlps, x), gradients(outputs_in_training, mlps, x)
    for truth, theirs, ours in zip(exact, expected, actual, strict=True):
        assert ours.dtype == theirs.dtype
        assert error(ours, truth) <= 2 * error(theirs, truth) + 1e-4
