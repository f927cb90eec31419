"""The plainest set classifier: an MLP on every element, the mean or maximum, an MLP on that."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dumlp_pin._layout import Sets
from dumlp_pin.blocks import MLP
from dumlp_pin.functional import POOLING
from dumlp_pin.models.classifier import Classifier, Widths
from dumlp_pin.models.registry import register_model


class PoolingClassifier(Classifier):
    """One class a set; `pooling` is "mean" or "max".

    >>> import torch
    >>> PoolingClassifier(3, 10, element=(64, 128))(torch.rand(2, 64, 3)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        element: Widths,
        pooling: str = "mean",
        head: Widths = (256,),
    ) -> None:
        super().__init__(in_features, element[-1], num_classes, head)
        self.element = MLP((in_features, *element))
        self.pool = POOLING[pooling]

    def forward_features(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, num_features): the feature of each set."""
        return self.pool(self.element(x, mask), mask)


@register_model
def meanpool_digits(**overrides: Any) -> PoolingClassifier:
    """8 x 8 digits as sets of 64 pixels; as many parameters as `dumlp_pin_digits`."""
    settings: dict[str, Any] = {
        "in_features": 3,
        "num_classes": 10,
        "element": (64, 128),
        "head": (104,),
    }
    return PoolingClassifier(**settings | overrides)
