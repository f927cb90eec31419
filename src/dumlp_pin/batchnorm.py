"""Batch norm over elements: every real element of every set in the batch is one row."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BatchNorm(nn.BatchNorm1d):
    """Batch norm of (..., F) over all but the last dimension; `mask` (...) says what counts.

    Statistics need two rows. A batch with fewer is normalised with the running estimates and
    leaves them alone, so that a set of one element, or a batch of one set, trains too.
    """

    MOMENTUM = 0.1

    def __init__(self, features: int) -> None:
        super().__init__(features, momentum=self.MOMENTUM)

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        rows = input.reshape(-1, input.shape[-1])
        if not self.training or (mask is None and rows.shape[0] > 1):
            return super().forward(rows).view_as(input)
        keep = torch.ones_like(rows[:, :1], dtype=torch.bool) if mask is None else mask.reshape(-1, 1)
        return self._normalise_kept(rows, keep).view_as(input)

    def _normalise_kept(self, rows: Tensor, keep: Tensor) -> Tensor:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        count = keep.sum()
        mean = wide.masked_fill(~keep, 0).sum(0) / count.clamp(min=1)
        square = (wide - mean).masked_fill(~keep, 0).square().sum(0)
        variance = square / count.clamp(min=1)

        enough = count > 1
        with torch.no_grad():
            step = self.MOMENTUM * enough
            unbiased = square / (count - 1).clamp(min=1)
            self.running_mean += (step * (mean - self.running_mean)).to(self.running_mean.dtype)
            self.running_var += (step * (unbiased - self.running_var)).to(self.running_var.dtype)
            self.num_batches_tracked += enough
        mean = torch.where(enough, mean, self.running_mean)
        variance = torch.where(enough, variance, self.running_var)
        normal = (wide - mean) * torch.rsqrt(variance + self.eps)
        return (normal * self.weight + self.bias).to(rows.dtype)
