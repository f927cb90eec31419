"""How large a model is and how much it computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(model: nn.Module, *inputs: Any) -> int:
    """Multiply-adds of one forward pass on `inputs`, by torch's counter.

    It counts matrix products and convolutions; activations, norms and sums are not in it.

    >>> from dumlp_pin.models import create_model
    >>> model = create_model("dumlp_pin_modelnet40")
    >>> round(count_macs(model, torch.rand(1, 1024, 6)) / 1e6, 1)
    18.5
    """
    counter = FlopCounterMode(display=False)
    training = model.training
    with counter, torch.no_grad():
        model.eval()(*inputs)
    model.train(training)
    return counter.get_total_flops() // 2
