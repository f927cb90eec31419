"""Set Transformer (Lee et al., 2019): elements attend to one another, and seeds attend to them.

The blocks have the names of that paper. They have no layer norm, as the published network for
point clouds has none.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dumlp_pin._layout import Sets, SetsT, open_sets, without_padding
from dumlp_pin.blocks import MLP
from dumlp_pin.functional import dot_product, set_softmax
from dumlp_pin.models.classifier import Classifier
from dumlp_pin.models.dumlp_pin import dumlp_pin_celeba
from dumlp_pin.models.neighbours import as_padded
from dumlp_pin.models.networks import AnomalyDetector
from dumlp_pin.models.registry import register_model


class MAB(nn.Module):
    """The multihead attention block of queries x to keys y: h + relu(W_o h) of each query, where
    h = W_q x + softmax((W_q x) (W_k y)^T / sqrt(width)) W_v y, in each head by itself.

    >>> MAB(3, 6, width=8, heads=2)(torch.rand(2, 5, 3), torch.rand(2, 7, 6)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, query_features: int, key_features: int, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"heads share the width evenly, got width {width}, heads {heads}")
        self.width, self.heads = width, heads
        self.query = _linear(query_features, width)
        self.key = _linear(key_features, width)
        self.value = _linear(key_features, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, N, width) from x (B, N, ...) and y (B, M, ...); `mask` (B, M) says which y are real.

        Where none is, x attends to what stands in the padding, which has to be finite.
        """
        queries = self.query(x)
        # (B, heads, N or M, width / heads)
        q, k, v = (
            values.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for values in (queries, self.key(y), self.value(y))
        )
        scores = q @ k.mT / math.sqrt(self.width)
        if mask is not None:
            lowest = torch.finfo(scores.dtype).min
            scores = scores.masked_fill(~mask[:, None, None], lowest)
        attended = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self._feed_forward(queries + attended)

    def of_seeds(self, seeds: Tensor, y: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, S, width) from S seeds, the same for every set, that attend to its elements y.

        In each head this is a dual-MLP dot-product whose branches are linear, the first with a
        softmax over the set. In an empty set a seed finds nothing and is left to itself.
        """
        queries = self.query(seeds)
        keys, sets = open_sets(self.key(y, mask), mask)
        values, _ = open_sets(self.value(y, mask), mask)
        attended = []
        parts = (part.chunk(self.heads, -1) for part in (queries, keys, values))
        for q, k, v in zip(*parts, strict=True):
            weights = set_softmax(sets.wrap(k @ q.mT / math.sqrt(self.width)), mask)
            attended.append(dot_product([weights, sets.wrap(v)], mask))
        return self._feed_forward(queries + torch.cat(attended, -1))

    def _feed_forward(self, h: Tensor) -> Tensor:
        return h + F.relu(self.out(h))


def _linear(before: int, after: int) -> MLP:
    """A linear layer that takes sets in any form and checks their width."""
    return MLP((before, after), bare_last=True)


class SAB(nn.Module):
    """Set attention block: every element attends to every one of its set, N x N weights a head.

    >>> SAB(3, width=8, heads=2)(torch.rand(2, 5, 3)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, in_features: int, width: int, heads: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.attend = MAB(in_features, in_features, width, heads)

    def forward(self, x: SetsT, mask: Tensor | None = None) -> SetsT:
        values, mask, back = as_padded(x, mask, self.in_features)
        return cast(SetsT, back(self.attend(values, values, mask)))


class ISAB(nn.Module):
    """Induced set attention block: a few learned points attend to the elements, and the elements
    to what these have found, so that the cost grows with N instead of N x N.

    >>> ISAB(3, width=8, heads=2, points=4)(torch.rand(2, 5, 3)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, in_features: int, width: int, heads: int, points: int) -> None:
        super().__init__()
        self.points = _seeds(points, width)
        self.gather = MAB(width, in_features, width, heads)
        self.attend = MAB(in_features, width, width, heads)

    def forward(self, x: SetsT, mask: Tensor | None = None) -> SetsT:
        x = without_padding(x, mask)
        found = self.gather.of_seeds(self.points, x, mask)
        values, sets = open_sets(x, mask)
        blocks = self.attend(sets.to_blocks(values), sets.block_spread(found))
        return sets.wrap(sets.fill(sets.from_blocks(blocks), 0))


class PMA(nn.Module):
    """Pooling by multihead attention: the feature of a whole set is what learned seeds find in it,
    `seeds` times `width` numbers.

    >>> PMA(width=8, heads=2, seeds=3)(torch.rand(2, 5, 8)).shape
    torch.Size([2, 24])
    """

    def __init__(self, width: int, heads: int, seeds: int = 1) -> None:
        super().__init__()
        self.out_features = seeds * width
        self.seeds = _seeds(seeds, width)
        self.attend = MAB(width, width, width, heads)

    def forward(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, out_features): the feature of each set."""
        return self.attend.of_seeds(self.seeds, x, mask).flatten(1)


def _seeds(count: int, width: int) -> nn.Parameter:
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(count, width)))


class SetTransformerClassifier(Classifier):
    """One class a set: attention blocks, pooling by attention with one seed, a linear layer.

    The blocks are induced by `points`, or with 0 of them plain set attention. Dropout is before and
    after the pooling.

    >>> SetTransformerClassifier(3, 10, width=32)(torch.rand(2, 100, 3)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        width: int = 256,
        heads: int = 4,
        points: int = 16,
        blocks: int = 2,
        dropout: float = 0.5,
    ) -> None:
        super().__init__(in_features, width, num_classes, head=())
        widths = [in_features] + [width] * (blocks - 1)
        self.blocks = nn.ModuleList(
            ISAB(before, width, heads, points) if points else SAB(before, width, heads)
            for before in widths
        )
        self.pool = PMA(width, heads)
        self.dropout = nn.Dropout(dropout)

    def forward_features(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, num_features): the feature of each set."""
        for block in self.blocks:
            x = block(x, mask)
        values, sets = open_sets(x, mask)
        return self.dropout(self.pool(sets.wrap(self.dropout(values)), mask))


@register_model
def set_transformer_modelnet40(**overrides: Any) -> SetTransformerClassifier:
    """Point clouds with normals, 40 classes; as published, without normals, in_features is 3.

    The paper's table has 1,284 million multiply-adds. The published network, which agrees with the
    table in its parameters, has 515 million at 1,024 points.
    """
    settings: dict[str, Any] = {"in_features": 6, "num_classes": 40}
    return SetTransformerClassifier(**settings | overrides)


@register_model
def set_transformer_celeba(heads: int = 4, **overrides: Any) -> AnomalyDetector:
    """The odd face out by pooling by attention; the paper does not say with how many heads."""
    settings: dict[str, Any] = {"extractor": PMA(256, heads)}
    return dumlp_pin_celeba(**settings | overrides)
