"""Batch norm over elements: every real element of every set in the batch is one row."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dumlp_pin._processes import sum_over


class BatchNorm(nn.BatchNorm1d):
    """Batch norm of (..., F) over all but the last dimension; `mask` (...) says what counts.

    Statistics need two rows. A batch with fewer is normalised with the running estimates and
    leaves them alone, so that a set of one element, or a batch of one set, trains too.
    """

    MOMENTUM = 0.1
    synchronised = False  # whether the rows of several processes are one batch
    group: dist.ProcessGroup | None = None  # of which processes; None for all

    def __init__(self, features: int) -> None:
        super().__init__(features, momentum=self.MOMENTUM)

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        rows = input.reshape(-1, input.shape[-1])
        if not self.training or (mask is None and rows.shape[0] > 1 and not self.synchronised):
            return super().forward(rows).view_as(input)
        if mask is None:
            mask = torch.ones_like(rows[:, 0], dtype=torch.bool)
        return self._normalise_kept(rows, keep=mask.reshape(-1, 1)).view_as(input)

    def _normalise_kept(self, rows: Tensor, keep: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        count = self._total(keep.sum())
        mean = self._total(wide.masked_fill(~keep, 0).sum(0)) / count.clamp(min=1)
        square = self._total((wide - mean).masked_fill(~keep, 0).square().sum(0))
        variance = square / count.clamp(min=1)

        enough = count > 1
        with torch.no_grad():
            step = self.MOMENTUM * enough.to(wide.dtype)
            unbiased = square / (count - 1).clamp(min=1)
            # Through `data`, as PyTorch's own batch norm writes: a backward pass still to come, of
            # an earlier batch, has no use for the estimates and must not mind their change.
            running_mean, running_var = self.running_mean.data, self.running_var.data
            running_mean += (step * (mean - running_mean)).to(running_mean.dtype)
            running_var += (step * (unbiased - running_var)).to(running_var.dtype)
            self.num_batches_tracked += enough
        mean = torch.where(enough, mean, self.running_mean)
        variance = torch.where(enough, variance, self.running_var)
        normal = (wide - mean) * torch.rsqrt(variance + self.eps)
        return (normal * self.weight + self.bias).to(rows.dtype)

    def _total(self, value: Tensor) -> Tensor:
        return sum_over(value, self.group) if self.synchronised else value
