"""Folded layers on a processor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dumlp_pin.kernels.fold import Layer

PACKED_FOR = 8192  # rows
# A call of the fused operation costs 20 microseconds before it multiplies; so in float32, where
# PyTorch has a way without, it begins to pay at so many rows.
MANY = 1024


class Packed(NamedTuple):
    weight: Tensor  # (out, in)
    ordered: Tensor | None  # the same as oneDNN likes to read it
    bias: Tensor
    relu: bool  # after it


Layers = list[Packed]


def pack(layers: Sequence[Layer], dtype: torch.dtype, last_relu: bool = False) -> Layers:
    """With a ReLU between the layers, and after the last where that is asked for."""
    # The C library gives memory back to the system when twice the largest piece that was ever freed
    # lies unused, and what runs through layers is then fetched page by page, again and again. Once
    # it has seen a piece as large as it remembers, which costs nothing since nobody writes to it,
    # that is over: in float32 it was a tenth of the time.
    torch.empty(31 << 20, dtype=torch.uint8)
    packed = []
    for index, (weight, bias) in enumerate(layers):
        weight, ordered = weight.to(dtype), None
        if fused(dtype) is not None:
            ordered = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR)
        relu = last_relu or index < len(layers) - 1
        packed.append(Packed(weight, ordered, bias.to(dtype), relu))
    return packed


def through(layers: Layers, x: Tensor) -> Tensor:
    """Rows (T, F) -> (T, features of the last layer)."""
    linear = fused(x.dtype)
    if x.dtype == torch.float32 and len(x) < MANY * torch.get_num_threads():
        linear = None
    for weight, ordered, bias, relu in layers:
        if linear is not None:
            x = linear(x, ordered, bias, "relu" if relu else "none", [], "")
        else:
            x = F.linear(x, weight, bias)
            x = x.relu_() if relu else x
    return x


@cache
def fused(dtype: torch.dtype) -> Any:
    """A linear layer with a ReLU, of oneDNN; None where this PyTorch has none that works.

    It has no public name: it is what PyTorch's compiler calls. Public operations take 1.2 times as
    long in float32, and 1.5 times in bfloat16.
    """
    operations: Any = torch.ops.mkldnn
    x, weight, bias = torch.ones(3, 2, dtype=dtype), torch.ones(4, 2, dtype=dtype), -torch.ones(4)
    try:
        ordered = operations._reorder_linear_weight(weight, PACKED_FOR)
        y = operations._linear_pointwise(x, ordered, bias.to(dtype), "relu", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return None
    return operations._linear_pointwise if torch.equal(y, torch.ones_like(y)) else None
