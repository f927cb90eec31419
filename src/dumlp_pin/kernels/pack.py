"""Folded layers as the Triton kernels read them: one tensor, every width a power of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from dumlp_pin.kernels.fold import Layer

BIAS_ROWS = 16  # the fewest rows that a matrix unit multiplies; three hold numbers
Places = tuple[tuple[int, int, int], ...]


def pack(branches: Sequence[Sequence[Layer]], like: Tensor, precision: str) -> Tensor:
    """All layers one after the other, each (WIDTH_IN + BIAS_ROWS, WIDTH_OUT) padded with zeros.

    Below its weight a layer has rows that sum up to its bias, each as much of what the rows above
    it have left as its type can hold: half-precision numbers then cost the bias nothing.
    """
    matrices = []
    for weight, bias in (layer for layers in branches for layer in layers):
        out, features = weight.shape
        matrix = weight.new_zeros(padded(features) + BIAS_ROWS, padded(out))
        matrix[:features, :out] = rounded(weight.T, like.dtype, precision)
        left = bias
        for row in matrix[padded(features) :][:3]:
            row[:out] = rounded(left, like.dtype, precision)
            left = left - row[:out]
        matrices.append(matrix.to(like.dtype).flatten())
    return torch.cat(matrices)


def places(widths: Sequence[Sequence[int]]) -> tuple[Places, ...]:
    """For each layer of each branch its padded widths, and where in `pack` it begins."""
    start, branches = 0, []
    for branch in widths:
        layers = []
        for before, after in zip(map(padded, branch), map(padded, branch[1:]), strict=False):
            layers.append((before, after, start))
            start += (before + BIAS_ROWS) * after
        branches.append(tuple(layers))
    return tuple(branches)


def size_of_pack(widths: Sequence[Sequence[int]]) -> int:
    before, after, start = places(widths)[-1][-1]
    return start + (before + BIAS_ROWS) * after


def pack_turned(
    layers: Sequence[tuple[Tensor, Tensor | None]], dtype: torch.dtype, precision: str
) -> tuple[Tensor, Tensor]:
    """Weights as they are, (WIDTH_OUT, WIDTH_IN), one after the other, and biases in float32."""
    weights, biases = [], []
    for weight, bias in layers:
        out, features = weight.shape
        matrix = weight.new_zeros(padded(out), padded(features))
        matrix[:out, :features] = rounded(weight, dtype, precision)
        weights.append(matrix.to(dtype).flatten())
        if bias is not None:
            biases.append(F.pad(bias, (0, padded(out) - out)))
    return torch.cat(weights), torch.cat(biases) if biases else layers[0][0].new_zeros(1)


def places_turned(widths: Sequence[int], without_bias: int) -> tuple[tuple[int, ...], ...]:
    """For each layer its padded widths, and where in `pack_turned` its weight and bias begin."""
    weight = bias = 0
    layers = []
    for n, (into, out) in enumerate(pairwise(map(padded, widths))):
        layers.append((into, out, weight, bias))
        weight += into * out
        bias += out if n != without_bias else 0
    return tuple(layers)


def padded(width: int) -> int:
    """The next power of two, 16 at least: what Triton's tensors and the matrix units have."""
    return max(16, 1 << (width - 1).bit_length())


def left_factors(widths: Sequence[int]) -> int:
    """How many factors make the rows of a product, so that least is multiplied out by element."""
    costs = [math.prod(widths[:k]) + math.prod(widths[k:]) for k in range(1, len(widths))]
    return 1 + costs.index(min(costs)) if costs else 1


def rounded(numbers: Tensor, dtype: torch.dtype, precision: str) -> Tensor:
    """To the nearest number that the matrix units take; of float32 in tf32 they cut off a part."""
    if dtype != torch.float32 or precision != "tf32":
        return numbers.to(dtype).to(numbers.dtype)
    bits = numbers.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
