"""Deep Sets (Zaheer et al., 2017): the classifier for point clouds, and an MLP, a mean, an MLP.

The classifier's layers let every element know the others through their mean or maximum, and keep
the order of elements free: s(W (x - pool(x)) + b), a special case of the paper's Lemma 3.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dumlp_pin._layout import Sets, SetsT, open_sets, without_padding
from dumlp_pin.functional import POOLING, set_max
from dumlp_pin.models.classifier import Classifier, Widths
from dumlp_pin.models.networks import AnomalyDetector
from dumlp_pin.models.pooling import pooling_celeba
from dumlp_pin.models.registry import register_model


class EquivariantLayer(nn.Module):
    """tanh(W (x - pool(x)) + b) for every element x of a set; no batch norm.

    With `own_weight` the pooled feature has one: tanh(W x - V pool(x) + b).

    >>> EquivariantLayer(3, 8)(torch.rand(2, 5, 3)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self, in_features: int, out_features: int, pooling: str = "max", own_weight: bool = False
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.of_pooled = nn.Linear(in_features, out_features, bias=False) if own_weight else None
        self.pool = POOLING[pooling]

    def forward(self, x: SetsT, mask: Tensor | None = None) -> SetsT:
        x = without_padding(x, mask)
        values, sets = open_sets(x, mask)
        if values.shape[-1] != self.linear.in_features:
            raise ValueError(
                f"expected {self.linear.in_features} features, got {values.shape[-1]} "
                f"in an input of shape {tuple(values.shape)}"
            )
        pooled = self.pool(x, mask)
        if self.of_pooled is None:
            z = self.linear(values - sets.spread(pooled))
        else:
            z = self.linear(values) - sets.spread(self.of_pooled(pooled))
        return sets.wrap(torch.tanh(z))


class DeepSetsClassifier(Classifier):
    """One class a set: equivariant layers, the maximum over the set, an MLP.

    The maximum goes through layers of the widths `dense`, linear and tanh, with dropout around
    each, before it comes to the head.

    >>> DeepSetsClassifier(3, 10, equivariant=(64, 64))(torch.rand(2, 100, 3)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        equivariant: Widths,
        pooling: str = "max",
        own_weight: bool = False,
        dense: Widths = (),
        head: Widths = (256,),
        dropout: float = 0.0,
    ) -> None:
        widths = (equivariant[-1], *dense)
        super().__init__(in_features, widths[-1], num_classes, head)
        self.layers = nn.ModuleList(
            EquivariantLayer(before, after, pooling, own_weight)
            for before, after in pairwise((in_features, *equivariant))
        )
        self.dense = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.dropout = nn.Dropout(dropout)

    def forward_features(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, num_features): the feature of each set."""
        for layer in self.layers:
            x = layer(x, mask)
        features = self.dropout(set_max(x, mask))
        for linear in self.dense:
            features = self.dropout(torch.tanh(linear(features)))
        return features


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


@register_model
def deepsets_modelnet40(**overrides: Any) -> DeepSetsClassifier:
    """Point clouds with normals, 40 classes; as published, without normals, in_features is 3.

    The paper's table has 1.34 million parameters and 135 million multiply-adds. Those are two
    networks: 512 wide, with a weight for the pooled feature, as published for 5,000 points, it has
    the parameters (and 540 million multiply-adds at 1,024 points); 256 wide, as published for
    1,000 points, it has the multiply-adds (and 0.21 or 0.34 million parameters, without and with
    that weight). This is the first.
    """
    settings: dict[str, Any] = {
        "in_features": 6,
        "num_classes": 40,
        "equivariant": (512, 512, 512),
        "own_weight": True,
        "dense": (512,),
        "head": (),
        "dropout": 0.5,
    }
    return DeepSetsClassifier(**settings | overrides)


@register_model
def deepsets_celeba(
    element: Widths = (256, 128, 256), after: Widths = (256, 128, 256), **overrides: Any
) -> AnomalyDetector:
    """The odd face out by an MLP, the mean over the set, and another MLP."""
    return pooling_celeba("mean", element, after, overrides)
