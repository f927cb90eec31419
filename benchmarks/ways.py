"""What the benchmarks of inference compare with: a model in use, and its definition."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dumlp_pin import create_model
from dumlp_pin.functional import ACTIVATIONS, dot_product


def trained(name: str) -> Any:
    """Fresh weights, with norms that are not at their start."""
    model = create_model(name).eval()
    for buffer_name, buffer in model.named_buffers():
        if "running" in buffer_name:
            buffer.uniform_(0.5, 1.5)
    return model


def defined(model: Any, x: Any, mask: Tensor | None = None) -> Tensor:
    """A classifier of one aggregation, operation by operation; none takes a faster way."""
    block = model.aggregate
    pairs = zip(block.activations, block.branches, strict=True)
    y = dot_product([ACTIVATIONS[name](branch(x, mask), mask) for name, branch in pairs], mask)
    return model.forward_head(y.flatten(1) * block.scale)
