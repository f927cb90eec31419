from __future__ import annotations

import copy
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dumlp_pin import MLP
from dumlp_pin.kernels.fold import Layer, fold_mlp
from tests.contract import Subject


def trained(*widths: int, bare_last: bool = False, dtype: torch.dtype = torch.float64) -> MLP:
    subject = Subject("", lambda: MLP(widths, bare_last=bare_last), widths[:1], per_element=True)
    return cast(MLP, subject.build(dtype=dtype))


def run(layers: list[Layer], x: Tensor) -> Tensor:
    for index, (weight, bias) in enumerate(layers):
        x = F.linear(F.relu(x) if index else x, weight, bias)
    return x


@pytest.mark.parametrize("widths", [(3,), (3, 5), (3, 16, 5), (6, 32, 128, 32)])
@pytest.mark.parametrize("bare_last", [False, True])
def test_folded_layers_compute_the_same(widths: tuple[int, ...], bare_last: bool) -> None:
    mlp = trained(*widths, bare_last=bare_last)
    x = torch.randn(50, widths[0], dtype=torch.float64)
    torch.testing.assert_close(run(fold_mlp(mlp), x), mlp(x), rtol=1e-12, atol=1e-12)


def test_layers_without_a_bias_get_one() -> None:
    mlp, x = trained(3, 5, 4), torch.randn(50, 3, dtype=torch.float64)
    cast(nn.Linear, mlp.linears[0]).register_parameter("bias", None)
    expected = mlp(x)
    torch.testing.assert_close(run(fold_mlp(mlp), x), expected)
    torch.testing.assert_close(mlp.fuse()(x), expected)


def test_error_of_folding_is_that_of_rounding() -> None:
    """Against float64, in float32: no worse than twice the layers and norms one by one."""
    mlp = trained(6, 32, 128, 32, dtype=torch.float32)
    x = 3 * torch.randn(2000, 6)
    exact = copy.deepcopy(mlp).double()(x.double())
    plain = (mlp(x) - exact).norm()
    assert 0 < (run(fold_mlp(mlp), x) - exact).norm() < 2 * plain


def test_halves_are_folded_in_float32() -> None:
    mlp = trained(3, 16, 5, dtype=torch.bfloat16)
    layers = fold_mlp(mlp)
    assert {t.dtype for layer in layers for t in layer} == {torch.float32}
    exact = copy.deepcopy(mlp).double()
    x = torch.randn(50, 3)
    torch.testing.assert_close(run(layers, x), exact(x.double()).float(), rtol=1e-5, atol=1e-5)


def test_gradients_go_through() -> None:
    mlp, x = trained(3, 8, 2), torch.randn(9, 3, dtype=torch.float64)
    expected = torch.autograd.grad(mlp(x).square().sum(), list(mlp.parameters()))
    actual = torch.autograd.grad(run(fold_mlp(mlp), x).square().sum(), list(mlp.parameters()))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)
