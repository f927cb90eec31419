"""Deep Sets (Zaheer et al., 2017), the classifier for point clouds.

Its layers let every element know the others through their mean or maximum, and keep the order of
elements free: s(W (x - pool(x)) + b), a special case of the paper's Lemma 3.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dumlp_pin._layout import Sets, SetsT, open_sets, without_padding
from dumlp_pin.functional import POOLING, set_max
from dumlp_pin.models.classifier import Classifier, Widths
from dumlp_pin.models.registry import register_model


class EquivariantLayer(nn.Module):
    """tanh(W (x - pool(x)) + b) for every element x of a set; no batch norm.

    >>> EquivariantLayer(3, 8)(torch.rand(2, 5, 3)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, in_features: int, out_features: int, pooling: str = "max") -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.pool = POOLING[pooling]

    def forward(self, x: SetsT, mask: Tensor | None = None) -> SetsT:
        x = without_padding(x, mask)
        values, sets = open_sets(x, mask)
        if values.shape[-1] != self.linear.in_features:
            raise ValueError(
                f"expected {self.linear.in_features} features, got {values.shape[-1]} "
                f"in an input of shape {tuple(values.shape)}"
            )
        return sets.wrap(torch.tanh(self.linear(values - sets.spread(self.pool(x, mask)))))


class DeepSetsClassifier(Classifier):
    """One class a set: equivariant layers, the maximum over the set, an MLP.

    >>> DeepSetsClassifier(3, 10, equivariant=(64, 64))(torch.rand(2, 100, 3)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        equivariant: Widths,
        pooling: str = "max",
        head: Widths = (256,),
        dropout: float = 0.0,
    ) -> None:
        super().__init__(in_features, equivariant[-1], num_classes, head)
        widths = (in_features, *equivariant)
        self.layers = nn.ModuleList(
            EquivariantLayer(before, after, pooling)
            for before, after in zip(widths, equivariant, strict=False)
        )
        self.dropout = nn.Dropout(dropout)

    def forward_features(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, num_features): the feature of each set."""
        for layer in self.layers:
            x = layer(x, mask)
        return self.dropout(set_max(x, mask))


@register_model
def deepsets_digits(**overrides: Any) -> DeepSetsClassifier:
    """8 x 8 digits as sets of 64 pixels; as many parameters as `dumlp_pin_digits`."""
    settings: dict[str, Any] = {
        "in_features": 3,
        "num_classes": 10,
        "equivariant": (88, 88, 88),
        "head": (72,),
    }
    return DeepSetsClassifier(**settings | overrides)
