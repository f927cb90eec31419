"""Point Transformer (Zhao et al., 2021): attention with a weight for every feature of a neighbour.

The layer sizes are those of the unofficial code that the paper's starred numbers come from (see
`point_transformer_modelnet40`): attention is 512 wide at every level. A mean over the four points
of the last level is a set's feature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dumlp_pin._layout import Sets, without_padding
from dumlp_pin.blocks import MLP
from dumlp_pin.functional import set_mean
from dumlp_pin.models.classifier import Classifier, Widths
from dumlp_pin.models.groups import pool_groups, sample, surroundings
from dumlp_pin.models.neighbours import as_padded, gather, interpolate
from dumlp_pin.models.registry import register_model
from dumlp_pin.models.segmenter import Segmenter


def linear_layers(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them; Point Transformer has no norm in most places."""
    first, *others = (nn.Linear(before, after) for before, after in pairwise(widths))
    layers = nn.Sequential(first)
    for linear in others:
        layers.extend([nn.ReLU(), linear])
    return layers


class VectorAttention(nn.Module):
    """x + what each element sees of its neighbours: sum_j softmax_j(a_ij) * (value_j + p_ij).

    p_ij is an MLP of the position of i relative to j, a_ij one of query_i - key_j + p_ij, a vector:
    the softmax over the neighbours j is taken for each of `width` features by itself.

    >>> points, x = torch.rand(2, 10, 3), torch.rand(2, 10, 8)
    >>> VectorAttention(8, width=16, neighbours=4)(points, x).shape
    torch.Size([2, 10, 8])
    """

    def __init__(self, features: int, width: int, neighbours: int) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.enter = nn.Linear(features, width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.position = linear_layers(3, width, width)
        self.score = linear_layers(width, width, width)
        self.leave = nn.Linear(width, features)

    def forward(self, points: Tensor, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Points (B, N, 3), their features x (B, N, features) and mask (B, N)."""
        points, x = without_padding(points, mask), without_padding(x, mask)
        near, kept = surroundings(points, mask, points, mask, self.neighbours)
        inside = self.enter(x)
        position = self.position(points[:, :, None] - gather(points, near))
        score = self.query(inside)[:, :, None] - gather(self.key(inside), near) + position
        score = self.score(score) / math.sqrt(score.shape[-1])
        if kept is not None:
            score = score.masked_fill(~kept[..., None], torch.finfo(score.dtype).min)
        seen = (score.softmax(2) * (gather(self.value(inside), near) + position)).sum(2)
        return without_padding(x + self.leave(seen), mask)


class Level(NamedTuple):
    """A set at one resolution: points (B, M, 3), their features (B, M, F), which of them are."""

    points: Tensor
    x: Tensor
    mask: Tensor | None


class TransitionDown(nn.Module):
    """To `count` points: an MLP on features and position of the neighbours of each, the maximum."""

    def __init__(self, in_features: int, out_features: int, count: int, neighbours: int) -> None:
        super().__init__()
        self.count, self.neighbours = count, neighbours
        self.mlp = MLP((3 + in_features, out_features, out_features))

    def forward(self, fine: Level) -> Level:
        index, chosen = sample(fine.points, self.count, fine.mask)
        centres = gather(fine.points, index)
        near, kept = surroundings(centres, chosen, fine.points, fine.mask, self.neighbours)
        relative = gather(fine.points, near) - centres[:, :, None]
        members = torch.cat([relative, gather(fine.x, near)], -1)
        return Level(centres, pool_groups(self.mlp, members, kept), chosen)


class TransitionUp(nn.Module):
    """Back to a finer level's points: what the coarse ones say between them, and what was there."""

    def __init__(self, coarse_features: int, fine_features: int) -> None:
        super().__init__()
        self.coarse = MLP((coarse_features, fine_features))
        self.fine = MLP((fine_features, fine_features))

    def forward(self, coarse: Level, fine: Level) -> Tensor:
        """(B, N, fine_features)"""
        x = F.relu(self.coarse(coarse.x, coarse.mask))
        between = interpolate(fine.points, coarse.points, x, mask=coarse.mask)
        return F.relu(self.fine(fine.x, fine.mask)) + between


class PointTransformerEncoder(nn.Module):
    """Points to features of ever fewer points."""

    def __init__(
        self,
        in_features: int,
        widths: Widths,
        samples: Sequence[int],
        neighbours: int,
        attention: int,
    ) -> None:
        super().__init__()
        if len(widths) != len(samples) + 1:
            raise ValueError(f"{len(samples)} samples need one width more, got {widths}")
        self.embed = linear_layers(in_features, widths[0], widths[0])
        self.attentions = nn.ModuleList(
            VectorAttention(width, attention, neighbours) for width in widths
        )
        self.downs = nn.ModuleList(
            TransitionDown(before, after, count, neighbours)
            for before, after, count in zip(widths, widths[1:], samples, strict=False)
        )

    def forward(self, points: Tensor, x: Tensor, mask: Tensor | None) -> list[Level]:
        """Every level, the finest first."""
        first, *others = self.attentions
        levels = [Level(points, first(points, self.embed(x), mask), mask)]
        for down, attention in zip(self.downs, others, strict=True):
            level = down(levels[-1])
            levels.append(Level(level.points, attention(*level), level.mask))
        return levels


class PointTransformerClassifier(Classifier):
    """One class a set: levels of `samples` points, and on the mean over the last linear layers.

    `widths` are the features at every level, the first that of all points; `attention` is the width
    inside the attention over `neighbours` points, `dense` are the widths of the linear layers.

    >>> model = PointTransformerClassifier(3, 40, widths=(8, 16), samples=(12,), attention=16)
    >>> model(torch.rand(2, 100, 3)).shape
    torch.Size([2, 40])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        widths: Widths = (32, 64, 128, 256, 512),
        samples: Sequence[int] = (256, 64, 16, 4),
        neighbours: int = 16,
        attention: int = 512,
        dense: Widths = (256, 64),
    ) -> None:
        super().__init__(in_features, dense[-1], num_classes, head=())
        self.encoder = PointTransformerEncoder(in_features, widths, samples, neighbours, attention)
        self.dense = linear_layers(widths[-1], *dense)

    def forward_features(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, num_features): the feature of each set."""
        values, mask, _ = as_padded(x, mask, self.in_features)
        last = self.encoder(values[:, :, :3], values, mask)[-1]
        return F.relu(self.dense(set_mean(last.x, last.mask)))


class PointTransformerSegmenter(Segmenter):
    """One class an element, of a set whose category is given with every element.

    As the classifier down to the last level; linear layers of widths `middle` and attention there,
    then up again, with attention at every level, and linear layers of widths `decoder`.

    >>> sizes = {"widths": (8, 16), "samples": (12,), "attention": 16}
    >>> model = PointTransformerSegmenter(3, 50, num_categories=16, **sizes)
    >>> model(torch.rand(2, 100, 3), torch.tensor([0, 15])).shape
    torch.Size([2, 100, 50])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_categories: int,
        widths: Widths = (32, 64, 128, 256, 512),
        samples: Sequence[int] = (512, 128, 32, 8),
        neighbours: int = 16,
        attention: int = 512,
        middle: Widths = (512, 512),
        decoder: Widths = (64, 64),
    ) -> None:
        super().__init__(in_features, decoder[-1], num_classes, num_categories)
        self.encoder = PointTransformerEncoder(
            in_features + num_categories, widths, samples, neighbours, attention
        )
        self.middle = linear_layers(widths[-1], *middle, widths[-1])
        self.middle_attention = VectorAttention(widths[-1], attention, neighbours)
        upwards = list(reversed(widths))
        self.ups = nn.ModuleList(TransitionUp(coarse, fine) for coarse, fine in pairwise(upwards))
        self.attentions = nn.ModuleList(
            VectorAttention(width, attention, neighbours) for width in upwards[1:]
        )
        self.decoder = linear_layers(widths[0], *decoder)

    def forward_features(
        self, x: Sets, category: Tensor | None = None, mask: Tensor | None = None
    ) -> Sets:
        """(B, N, num_features), or a SetBatch: the feature of each element."""
        values, mask, back = as_padded(x, mask, self.in_features)
        points, told = values[:, :, :3], self.one_hot(category, values.dtype)
        if told is not None:
            told = told[:, None].expand(-1, values.shape[1], -1)
            values = torch.cat([values, told], -1)
        *finer, level = self.encoder(points, values, mask)
        between = self.middle_attention(level.points, self.middle(level.x), level.mask)
        level = Level(level.points, between, level.mask)
        for fine, up, attention in zip(reversed(finer), self.ups, self.attentions, strict=True):
            finer_x = attention(fine.points, up(level, fine), fine.mask)
            level = Level(fine.points, finer_x, fine.mask)
        return back(F.relu(self.decoder(level.x)))


@register_model
def point_transformer_modelnet40(**overrides: Any) -> PointTransformerClassifier:
    """Point clouds with normals, 40 classes of objects.

    9.58 M parameters and 18.4 G multiply-adds at 1,024 points; the paper's starred numbers are
    9.6 M and 18.3 G. The same code on the ShapeNet parts has the starred 19.2 M but for 1 %.
    """
    settings: dict[str, Any] = {"in_features": 6, "num_classes": 40}
    return PointTransformerClassifier(**settings | overrides)


@register_model
def point_transformer_shapenetpart(**overrides: Any) -> PointTransformerSegmenter:
    """50 parts of objects of 16 categories: 19.4 M parameters, where the paper has a rough 19.2."""
    settings: dict[str, Any] = {"in_features": 3, "num_classes": 50, "num_categories": 16}
    return PointTransformerSegmenter(**settings | overrides)
