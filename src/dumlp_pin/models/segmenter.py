"""What every network that labels elements has in common: features of each element, then a head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dumlp_pin._layout import Sets, open_sets
from dumlp_pin.kernels.fuse import Fusible


class Segmenter(Fusible):
    """One class an element. A subclass says how features come about, in `forward_features`.

    With `num_categories` the category of each set is given, as what kind of object it is.
    """

    task = "segmentation"

    def __init__(
        self, in_features: int, num_features: int, num_classes: int, num_categories: int = 0
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.num_features = num_features
        self.num_categories = num_categories
        self.num_classes = num_classes
        self.head = nn.Linear(num_features, num_classes)

    def reset_head(self, num_classes: int) -> None:
        """A fresh head for another number of classes; the rest keeps its weights."""
        self.num_classes = num_classes
        self.head = nn.Linear(self.num_features, num_classes).to(self.head.weight)

    def forward_features(
        self, x: Sets, category: Tensor | None = None, mask: Tensor | None = None
    ) -> Sets:
        """(B, N, num_features), or a SetBatch: the feature of each element."""
        raise NotImplementedError

    def forward_head(self, features: Sets) -> Sets:
        values, sets = open_sets(features)
        return sets.wrap(self.head(values))

    def forward(self, x: Sets, category: Tensor | None = None, mask: Tensor | None = None) -> Sets:
        """(B, N, num_classes), or a SetBatch: the logits of each element."""
        return self.forward_head(self.forward_features(x, category, mask))

    def one_hot(self, category: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """(B, num_categories), or None for a model that takes none.

        A category out of range is noticed where looking costs no wait.
        """
        if category is None:
            if self.num_categories:
                raise TypeError(f"this model needs a category (B,) in 0..{self.num_categories - 1}")
            return None
        if not self.num_categories:
            raise TypeError("this model takes no category")
        if category.is_floating_point() or category.ndim != 1:
            raise TypeError(
                f"categories are integers (B,), got {category.dtype} {tuple(category.shape)}"
            )
        known = torch.arange(self.num_categories, device=category.device)
        if category.device.type == "cpu" and not torch.compiler.is_compiling():
            unknown = category[(category < 0) | (category >= self.num_categories)]
            if len(unknown):
                raise ValueError(
                    f"categories are 0..{self.num_categories - 1}, got {int(unknown[0])}"
                )
        return (category[:, None] == known).to(dtype)
