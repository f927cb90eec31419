"""What every classifier of sets has in common: features of the set, then a head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dumlp_pin._layout import Sets
from dumlp_pin.blocks import MLP
from dumlp_pin.kernels.fuse import Fusible

Widths = Sequence[int]


class Classifier(Fusible):
    """One class a set. A subclass says how features come about, in `forward_features`."""

    task = "classification"

    def __init__(self, in_features: int, num_features: int, num_classes: int, head: Widths) -> None:
        super().__init__()
        self.in_features = in_features
        self.num_features = num_features
        self.head_widths = tuple(head)
        self.num_classes = num_classes
        self.head = self._fresh_head()

    def _fresh_head(self) -> MLP:
        return MLP((self.num_features, *self.head_widths, self.num_classes), bare_last=True)

    def reset_head(self, num_classes: int) -> None:
        """A fresh head for another number of classes; the rest keeps its weights."""
        self.num_classes = num_classes
        self.head = self._fresh_head().to(next(self.head.parameters()))

    def forward_features(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, num_features): the feature of each set."""
        raise NotImplementedError

    def forward_head(self, features: Tensor) -> Tensor:
        return self.head(features)

    def forward(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, num_classes): the logits of each set."""
        return self.forward_head(self.forward_features(x, mask))
