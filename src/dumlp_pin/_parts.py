"""The aggregation of a set from parts of it: chunks of a stream, or the shares of processes.

An activation does something to every number, and scales a column by what only the whole set knows:

    softmax    exp(x - shift)    times    1 / sum of exp(x - shift)
    squash     x                 times    |x| / (1 + |x|^2)
    relu       relu(x)           times    1

The scales leave the sum over the elements. What stays inside is added up over the parts of a set;
the scales are applied at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dumlp_pin._layout import Sets, open_sets
from dumlp_pin.functional import dot_product


@dataclass(frozen=True)
class InParts:
    """An activation in parts. The defaults are those of a function of each number alone."""

    weigh: Callable[[Tensor, Tensor], Tensor]  # numbers and their shift -> what is multiplied
    mass: Callable[[Tensor], Tensor] = torch.zeros_like  # -> what the scale needs the sum of
    scale: Callable[[Tensor], Tensor] = torch.ones_like  # that sum -> the scale of the column
    shifted: bool = False  # by the largest number of the column, else by 0


def _inverse(mass: Tensor) -> Tensor:
    return 1 / torch.where(mass > 0, mass, 1)  # nothing has mass 0, and is scaled by anything


def _root(square: Tensor) -> Tensor:
    """The root, with slope 0 instead of infinity at 0."""
    return torch.where(square > 0, torch.where(square > 0, square, 1).sqrt(), 0)


def _squash(factor: Callable[[Tensor], Tensor]) -> InParts:
    return InParts(lambda x, _: x, torch.square, lambda square: _root(square) * factor(square))


IN_PARTS: dict[str, InParts] = {
    "softmax": InParts(
        lambda x, shift: torch.exp(x - shift), lambda weight: weight, _inverse, shifted=True
    ),
    "squash": _squash(lambda square: 1 / (1 + square)),
    "squash_authors": _squash(lambda square: 1 + square),
    "relu": InParts(lambda x, _: F.relu(x)),
    "elu": InParts(lambda x, _: F.elu(x)),
    "none": InParts(lambda x, _: x),
}


@dataclass(frozen=True)
class Sums:
    """What parts of B sets add up to, of n factors of widths c_1, ..., c_n and C = c_1 + ... + c_n.

    >>> x = torch.randn(1, 10, 3)
    >>> names = ("softmax", "relu")
    >>> whole = Sums.of(names, [x, x])
    >>> parts = Sums.of(names, [x[:, :4]] * 2).plus(Sums.of(names, [x[:, 4:]] * 2))
    >>> torch.allclose(parts.finish(names), x.softmax(1).mT @ x.relu(), atol=1e-6)
    True
    """

    shift: Tensor  # (B, C)
    mass: Tensor  # (B, C)
    product: Tensor  # (B, c_1, ..., c_n)

    @classmethod
    def of(
        cls,
        activations: Sequence[str],
        factors: Sequence[Sets],
        mask: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> Sums:
        """From what the branches give, (B, N, c_j) each. A shift is no smaller than `peaks`."""
        if shift is None:
            shift = peaks(activations, factors, mask)
        weights, masses, start = [], [], 0
        for name, factor in zip(activations, factors, strict=True):
            values, sets = open_sets(factor, mask)
            stop = start + values.shape[-1]
            # exp(-inf) is 0: what stands in the padding weighs nothing, nor does its gradient.
            values = sets.fill(values, -torch.inf if IN_PARTS[name].shifted else 0)
            weight = IN_PARTS[name].weigh(values, sets.spread(shift[:, start:stop]))
            weights.append(sets.wrap(weight))
            masses.append(sets.total(IN_PARTS[name].mass(weight)))
            start = stop
        return cls(shift, torch.cat(masses, 1), dot_product(weights, mask))

    def at(self, shift: Tensor) -> Sums:
        """The same with a larger shift (B, C)."""
        ratio = torch.exp(self.shift - shift)
        return Sums(shift, self.mass * ratio, _scale_columns(self.product, ratio))

    def plus(self, other: Sums) -> Sums:
        shift = torch.maximum(self.shift, other.shift)
        a, b = self.at(shift), other.at(shift)
        return Sums(shift, a.mass + b.mass, a.product + b.product)

    def minus(self, other: Sums) -> Sums:
        return self.plus(Sums(other.shift, -other.mass, -other.product))

    def finish(self, activations: Sequence[str]) -> Tensor:
        """(B, c_1, ..., c_n): the product of the activated factors, once all parts are in."""
        masses = self.mass.split(self.product.shape[1:], dim=1)
        scales = [IN_PARTS[name].scale(m) for name, m in zip(activations, masses, strict=True)]
        return _scale_columns(self.product, torch.cat(scales, 1))


def peaks(activations: Sequence[str], factors: Sequence[Sets], mask: Tensor | None) -> Tensor:
    """(B, C): the largest number of each column that a softmax shifts by, 0 of other columns."""
    columns = []
    for name, factor in zip(activations, factors, strict=True):
        values, sets = open_sets(factor, mask)
        # The smallest finite number instead of -inf: two empty parts then differ by 0, not by NaN.
        peak = sets.peak(values.detach()).clamp(min=torch.finfo(values.dtype).min)
        columns.append(peak if IN_PARTS[name].shifted else torch.zeros_like(peak))
    return torch.cat(columns, 1)


def _scale_columns(product: Tensor, scales: Tensor) -> Tensor:
    """Each axis j of product (B, c_1, ..., c_n) times its own c_j of scales (B, C)."""
    for axis, scale in enumerate(scales.split(product.shape[1:], dim=1), start=1):
        shape = [1] * product.ndim
        shape[0], shape[axis] = scale.shape
        product = product * scale.view(shape)
    return product
