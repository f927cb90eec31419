"""Layers between the feature of a set and the linear layer that makes logits of it."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from dumlp_pin.blocks import MLP


class Dense(nn.Sequential):
    """Linear, batch norm, ReLU and dropout for each of `widths` after the first.

    >>> import torch
    >>> Dense(1024, 512, 256, dropout=0.5)(torch.rand(2, 1024)).shape
    torch.Size([2, 256])
    """

    def __init__(self, *widths: int, dropout: float = 0.0) -> None:
        super().__init__()
        for pair in pairwise(widths):
            self.extend([MLP(pair), nn.ReLU(), nn.Dropout(dropout)])
