"""Inference on a GPU: both blocks as Triton kernels."""

from __future__ import annotations

from torch import nn

import dumlp_pin.blocks as blocks
from dumlp_pin._layout import Sets
from dumlp_pin.kernels import gpu_aggregation, gpu_broadcast
from dumlp_pin.kernels._triton import why_not_on
from dumlp_pin.kernels.gpu_aggregation import aggregate as aggregate
from dumlp_pin.kernels.gpu_broadcast import broadcast as broadcast


def why_not(block: nn.Module, x: Sets) -> str | None:
    """Why the block's kernel cannot take its place in inference; None if it can."""
    if (reason := why_not_on(x.device.type)) is not None:
        return reason
    if isinstance(block, blocks.AggregationBlock):
        return gpu_aggregation.why_not(block, x)
    if isinstance(block, blocks.BroadcastBlock):
        return gpu_broadcast.why_not(block, x)
    return f"no kernel computes a {type(block).__name__}"
