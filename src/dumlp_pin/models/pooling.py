"""The plainest features of sets: layers on every element, the mean or maximum, layers on that."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from dumlp_pin._layout import Sets
from dumlp_pin.blocks import MLP
from dumlp_pin.functional import POOLING
from dumlp_pin.models.classifier import Classifier, Widths
from dumlp_pin.models.dumlp_pin import dumlp_pin_celeba
from dumlp_pin.models.networks import AnomalyDetector
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


class PoolingBlock(nn.Module):
    """The feature of a whole set: layers on every element, `pooling`, layers on the result.

    `element` and `after` are their widths, the input's first; a single width means no layer. Batch
    norm is where the paper's parameter counts have it: after each of several layers on elements,
    not after a single one, and nowhere after pooling.

    >>> import torch
    >>> PoolingBlock("max", element=(6, 16), after=(16, 8))(torch.rand(2, 5, 6)).shape
    torch.Size([2, 8])
    """

    def __init__(self, pooling: str, element: Widths, after: Widths) -> None:
        super().__init__()
        self.out_features = after[-1]
        self.element = MLP(element, bare_last=len(element) == 2)
        self.pool = POOLING[pooling]
        self.after = nn.ModuleList(nn.Linear(before, width) for before, width in pairwise(after))

    def forward(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, out_features): the feature of each set."""
        y = self.pool(self.element(x, mask), mask)
        for layer, linear in enumerate(self.after):
            y = linear(F.relu(y) if layer else y)
        return y


def pooling_celeba(
    pooling: str, element: Widths, after: Widths, overrides: dict[str, Any]
) -> AnomalyDetector:
    """`dumlp_pin_celeba` with pooling where that has an aggregation; nothing else differs."""
    settings: dict[str, Any] = {"extractor": PoolingBlock(pooling, element, after)}
    return dumlp_pin_celeba(**settings | overrides)


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


@register_model
def maxpool_celeba(**overrides: Any) -> AnomalyDetector:
    """The odd face out by the maximum over the set, and a linear layer."""
    return pooling_celeba("max", (256,), (256, 256), overrides)


@register_model
def meanpool_celeba(**overrides: Any) -> AnomalyDetector:
    """The odd face out by the mean over the set, and a linear layer."""
    return pooling_celeba("mean", (256,), (256, 256), overrides)
