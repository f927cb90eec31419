"""Sums over processes that share a computation."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def sum_over(value: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum over a group, None for all processes.

    The losses of the processes are summed too, so the gradient is, on the way back.
    """
    return _SumOverGroup.apply(value, group)


class _SumOverGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        total = value.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return sum_over(gradients[0], ctx.group), None
