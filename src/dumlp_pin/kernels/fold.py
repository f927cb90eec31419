"""Batch norm in eval mode is a scale and a shift: it goes into the linear layer before it."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from dumlp_pin.batchnorm import BatchNorm

if TYPE_CHECKING:
    from dumlp_pin.blocks import MLP

# A layer's weight (out, in) and bias (out,).
Layer = tuple[Tensor, Tensor]


def fold_mlp(mlp: MLP) -> list[Layer]:
    """An MLP in eval mode as layers without batch norm: linear, ReLU, linear, ReLU, ..., linear.

    In float32 at least: whoever rounds them to half precision says so.

    >>> from dumlp_pin import MLP
    >>> mlp = MLP((3, 16, 8)).eval()
    >>> (weight_1, bias_1), (weight_2, bias_2) = fold_mlp(mlp)
    >>> x = torch.randn(10, 3)
    >>> y = torch.relu(x @ weight_1.T + bias_1) @ weight_2.T + bias_2
    >>> torch.allclose(y, mlp(x), atol=1e-5)
    True
    """
    return [
        fold(cast(nn.Linear, linear), cast(BatchNorm | None, norm))
        for linear, norm in zip_longest(mlp.linears, mlp.norms)
    ]


def fold(linear: nn.Linear, norm: BatchNorm | None) -> Layer:
    weight, bias = linear.weight, linear.bias
    if bias is None:
        bias = weight.new_zeros(len(weight))
    wide = torch.promote_types(weight.dtype, torch.float32)
    if norm is None:
        return weight.to(wide), bias.to(wide)
    scale, shift = scale_and_shift(norm)
    return weight * scale[:, None], torch.addcmul(shift, bias, scale)


def scale_and_shift(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Batch norm in eval mode is x * scale + shift; both in float32 at least."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    wide = torch.promote_types(mean.dtype, torch.float32)
    scale = norm.weight * torch.rsqrt(variance.to(wide) + norm.eps)
    return scale, torch.addcmul(norm.bias.to(wide), mean.to(wide), scale, value=-1)
