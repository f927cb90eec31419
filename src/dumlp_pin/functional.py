"""What the paper's operations mean, in plain PyTorch. Every faster way is judged against these.

Each takes sets as (B, N, F), as (B, N, F) with a mask (B, N), or as a SetBatch, and means the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dumlp_pin._layout import Padded, Sets, SetsT, open_sets
from dumlp_pin.sets import SetBatch


def set_softmax(x: SetsT, mask: Tensor | None = None) -> SetsT:
    """Softmax over the elements of each set, one for every feature.

    >>> set_softmax(torch.zeros(1, 4, 2))[0, :, 0]
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    values, sets = open_sets(x, mask)
    if isinstance(sets, Padded) and mask is None:
        return sets.wrap(values.softmax(1))  # the same numbers from one kernel
    values = sets.fill(_widened(values), -torch.inf)
    # The smallest finite number instead of -inf keeps an empty set, and its gradient, free of NaN.
    peak = sets.peak(values).detach().clamp(min=torch.finfo(values.dtype).min)
    weight = torch.exp(values - sets.spread(peak))
    # A set that is not empty sums to 1 or more, since its peak has weight 1.
    total = sets.total(weight).clamp(min=1)
    return sets.wrap((weight / sets.spread(total)).to(x.dtype))


def set_mean(x: Sets, mask: Tensor | None = None) -> Tensor:
    """(B, F): the mean over each set, zeros for an empty one."""
    values, sets = open_sets(x, mask)
    wide = _widened(values)
    count = sets.total(torch.ones_like(wide[..., :1])).clamp(min=1)
    return (sets.total(wide) / count).to(values.dtype)


def set_max(x: Sets, mask: Tensor | None = None) -> Tensor:
    """(B, F): the largest over each set, zeros for an empty one."""
    values, sets = open_sets(x, mask)
    peak = sets.peak(values)
    return peak.masked_fill(peak == -torch.inf, 0)


POOLING: dict[str, Callable[[Sets, Tensor | None], Tensor]] = {"mean": set_mean, "max": set_max}


def squash(x: SetsT, mask: Tensor | None = None) -> SetsT:
    """Squashing of the capsule paper: x |x| / (1 + |x|^2), x a feature's column over the set.

    >>> column = torch.tensor([3.0, 4.0])[None, :, None]
    >>> squash(column).norm()  # 5^2 / (1 + 5^2)
    tensor(0.9615)
    """
    return _scaled_by_norm(x, mask, lambda square, norm: norm / (1 + square))


def squash_authors(x: SetsT, mask: Tensor | None = None) -> SetsT:
    """What the authors' code calls squashing: x |x| (1 + |x|^2), a product where capsules divide.

    Their ablation measured this function; it grows with the fourth power of the input.
    """
    return _scaled_by_norm(x, mask, lambda square, norm: norm * (1 + square))


def _scaled_by_norm(
    x: SetsT, mask: Tensor | None, factor: Callable[[Tensor, Tensor], Tensor]
) -> SetsT:
    values, sets = open_sets(x, mask)
    values = sets.fill(_widened(values), 0)
    square = sets.total(values.square())
    # The root has no slope at 0, although the scaled column has one (0): keep it away from there.
    norm = torch.where(square > 0, torch.where(square > 0, square, 1).sqrt(), 0)
    return sets.wrap((values * sets.spread(factor(square, norm))).to(x.dtype))


def dot_product(factors: Sequence[Sets], mask: Tensor | None = None) -> Tensor:
    """The sum over each set of the product of n factors (N, c_j): (B, c_1, ..., c_n).

    Two factors A and B give A^T B, one gives the plain sum, more the tensor of Theorem 2.

    >>> a, b, c = torch.rand(2, 5, 3), torch.rand(2, 5, 4), torch.rand(2, 5, 2)
    >>> torch.allclose(dot_product([a, b]), a.mT @ b)
    True
    >>> torch.allclose(dot_product([a, b, c]), torch.einsum("bni,bnj,bnk->bijk", a, b, c))
    True
    """
    opened = [open_sets(factor, mask) for factor in factors]
    sets = opened[0][1]
    widths = [values.shape[-1] for values, _ in opened]
    if len(opened) == 1:
        values = opened[0][0]
        return sets.total(_widened(values)).to(values.dtype)
    # Rows of the factors are multiplied out in two groups, one matrix product joins the groups;
    # the groups that make the least to multiply out are the ones nearest in size.
    costs = [math.prod(widths[:k]) + math.prod(widths[k:]) for k in range(1, len(widths))]
    cut = 1 + costs.index(min(costs))
    blocks = [sets.to_blocks(values) for values, _ in opened]
    left, right = _row_products(blocks[:cut]), _row_products(blocks[cut:])
    per_set = sets.block_total(_widened(left.mT @ right)).to(left.dtype)
    return per_set.reshape(per_set.shape[0], *widths)


def _row_products(factors: Sequence[Tensor]) -> Tensor:
    """(M, K, c_1), (M, K, c_2), ... -> (M, K, c_1 c_2 ...), the product of each row with each."""
    product, *others = factors
    for factor in others:
        product = (product[..., :, None] * factor[..., None, :]).flatten(-2)
    return product


def _widened(values: Tensor) -> Tensor:
    """Sums over a set of half-precision numbers are kept in float32, as matrix products do."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _each_element(function: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def activation(x: SetsT, mask: Tensor | None = None) -> SetsT:
        return x.with_rows(function(x.rows)) if isinstance(x, SetBatch) else function(x)

    return activation


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "softmax": set_softmax,
    "squash": squash,
    "squash_authors": squash_authors,
    "relu": _each_element(F.relu),
    "elu": _each_element(F.elu),
    "none": _each_element(lambda x: x),
}
