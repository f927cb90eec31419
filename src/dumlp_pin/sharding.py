"""One set on several processes, each of which holds some of its elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dumlp_pin._layout import Sets, open_sets
from dumlp_pin._parts import Sums, peaks
from dumlp_pin._processes import sum_over
from dumlp_pin.batchnorm import BatchNorm


def synchronise_norms(module: nn.Module, group: dist.ProcessGroup) -> None:
    """In training, the rows of all processes of a group become one batch of every batch norm."""
    for norm in module.modules():
        if isinstance(norm, BatchNorm):
            norm.synchronised, norm.group = True, group


def sharded_product(
    activations: Sequence[str],
    factors: Sequence[Sets],
    mask: Tensor | None,
    group: dist.ProcessGroup,
) -> Tensor:
    """(B, c_1, ..., c_n) of the whole sets, on every process; each gives its elements' factors.

    Two messages: the largest logits, then the sums of all that is left to add.
    """
    wide, dtype = [], torch.float32
    for factor in factors:
        values, sets = open_sets(factor, mask)
        dtype = values.dtype
        # As everywhere, sums over a set of half-precision numbers are kept in float32.
        wide.append(sets.wrap(values.to(torch.promote_types(dtype, torch.float32))))
    shift = peaks(activations, wide, mask)
    dist.all_reduce(shift, dist.ReduceOp.MAX, group=group)
    part = Sums.of(activations, wide, mask, shift)
    message = torch.cat([part.mass, part.product.flatten(1)], dim=1)
    mass, product = sum_over(message, group).tensor_split([part.mass.shape[1]], dim=1)
    return Sums(shift, mass, product.view_as(part.product)).finish(activations).to(dtype)
