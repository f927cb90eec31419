"""PointNet++ (Qi et al., 2017): PointNet on neighbourhoods, then on neighbourhoods of those.

Set abstraction samples centres and makes one feature of the points around each; feature
propagation carries features back to the points by interpolation. Two things differ from the
authors' code, so that the answer depends on the set alone: sampling starts at the point farthest
from the mean, and a ball with too many points keeps the nearest, not the first stored. A ball with
too few is not filled with copies: what is missing is masked out, and batch norm does not count it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dumlp_pin._layout import Sets
from dumlp_pin.blocks import MLP
from dumlp_pin.functional import set_max
from dumlp_pin.models.classifier import Classifier, Widths
from dumlp_pin.models.dense import Dense
from dumlp_pin.models.groups import pool_groups, sample
from dumlp_pin.models.neighbours import as_padded, gather, interpolate, within_each
from dumlp_pin.models.registry import register_model
from dumlp_pin.models.segmenter import Segmenter


class Scale(NamedTuple):
    """The ball around a centre, how many of its points are looked at, and an MLP's widths."""

    radius: float
    neighbours: int
    widths: Widths


class Level(NamedTuple):
    """How many centres a set abstraction samples, and its scales: several are multi-scale."""

    centres: int
    scales: Sequence[Scale]


class Cloud(NamedTuple):
    """Padded sets of places (B, N, D), each with a feature (B, N, F), and a mask (B, N)."""

    places: Tensor
    features: Tensor
    mask: Tensor | None


class SetAbstraction(nn.Module):
    """Sampled centres, each with the maximum of an MLP over the points in the ball around it.

    The MLP sees a point's feature and its place relative to the centre. Of several scales the
    features are concatenated.

    >>> abstraction = SetAbstraction(4, 3, Level(16, [Scale(0.5, 8, (32, 64))]))
    >>> cloud = abstraction(Cloud(torch.rand(2, 100, 3), torch.rand(2, 100, 4), None))
    >>> cloud.places.shape, cloud.features.shape
    (torch.Size([2, 16, 3]), torch.Size([2, 16, 64]))
    """

    def __init__(self, in_features: int, dimensions: int, level: Level) -> None:
        super().__init__()
        self.centres = level.centres
        self.scales = [Scale(*scale) for scale in level.scales]  # a recipe's file has lists
        self.out_features = sum(scale.widths[-1] for scale in self.scales)
        self.mlps = nn.ModuleList(
            MLP((in_features + dimensions, *scale.widths)) for scale in self.scales
        )

    def forward(self, cloud: Cloud) -> Cloud:
        places, features, mask = cloud
        index, chosen = sample(places, self.centres, mask)
        centres = gather(places, index)
        balls = [(scale.radius, scale.neighbours) for scale in self.scales]
        found = within_each(centres, places, balls, mask)
        of_scales = []
        for (near, inside), mlp in zip(found, self.mlps, strict=True):
            offsets = gather(places, near) - centres[:, :, None]
            members = torch.cat((gather(features, near), offsets), -1)
            kept = inside if chosen is None else inside & chosen[:, :, None]
            of_scales.append(pool_groups(cast(MLP, mlp), members, kept))
        return Cloud(centres, torch.cat(of_scales, -1), chosen)

    def extra_repr(self) -> str:
        return f"centres={self.centres}, scales={self.scales}"


class WholeSet(nn.Module):
    """The last abstraction: all points are one group, around the origin."""

    def __init__(self, in_features: int, dimensions: int, widths: Widths) -> None:
        super().__init__()
        self.out_features = widths[-1]
        self.mlp = MLP((in_features + dimensions, *widths))

    def forward(self, cloud: Cloud) -> Cloud:
        values = self.mlp(torch.cat((cloud.features, cloud.places), -1), cloud.mask)
        feature = F.relu(set_max(values, cloud.mask))[:, None]
        origin = cloud.places.new_zeros(feature.shape[0], 1, cloud.places.shape[2])
        return Cloud(origin, feature, None)


class FeaturePropagation(nn.Module):
    """Features of a coarse cloud interpolated at the places of a fine one, beside its own.

    >>> fine = Cloud(torch.rand(2, 100, 3), torch.rand(2, 100, 4), None)
    >>> coarse = Cloud(torch.rand(2, 16, 3), torch.rand(2, 16, 64), None)
    >>> FeaturePropagation(64 + 4, (32, 8))(fine, coarse).features.shape
    torch.Size([2, 100, 8])
    """

    def __init__(self, in_features: int, widths: Widths) -> None:
        super().__init__()
        self.mlp = MLP((in_features, *widths))

    def forward(self, fine: Cloud, coarse: Cloud) -> Cloud:
        carried = interpolate(fine.places, coarse.places, coarse.features, mask=coarse.mask)
        values = self.mlp(torch.cat((carried, fine.features), -1), fine.mask)
        return Cloud(fine.places, F.relu(values), fine.mask)


class Hierarchy(nn.Module):
    """Coarser and coarser clouds from set abstractions, one after another.

    With `whole` the last is the whole set: an MLP of these widths and the maximum.
    """

    def __init__(
        self,
        in_features: int,
        dimensions: int,
        levels: Sequence[Level],
        whole: Widths = (),
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.dimensions = dimensions
        self.widths = [in_features - dimensions]  # of the features at each level, the input's first
        self.abstractions = nn.ModuleList()
        for level in levels:
            abstraction = SetAbstraction(self.widths[-1], dimensions, Level(*level))
            self.abstractions.append(abstraction)
            self.widths.append(abstraction.out_features)
        if whole:
            self.abstractions.append(WholeSet(self.widths[-1], dimensions, whole))
            self.widths.append(whole[-1])

    def forward(self, values: Tensor, mask: Tensor | None = None) -> list[Cloud]:
        """The input (B, N, in_features) as a cloud, then one cloud a level."""
        places, features = values.tensor_split([self.dimensions], -1)
        clouds = [Cloud(places, features, mask)]
        for abstraction in self.abstractions:
            clouds.append(abstraction(clouds[-1]))
        return clouds


class PointNet2Classifier(Classifier):
    """One class a set: a hierarchy up to the whole set, then the layers `dense`, each with dropout.

    The first `dimensions` of an element's features are its place.

    >>> levels = [Level(32, [Scale(0.2, 16, (16, 32))]), Level(8, [Scale(0.4, 16, (32, 64))])]
    >>> PointNet2Classifier(3, 10, levels, whole=(64, 128))(torch.rand(2, 100, 3)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        levels: Sequence[Level],
        whole: Widths = (256, 512, 1024),
        dense: Widths = (512, 256),
        dimensions: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(in_features, dense[-1], num_classes, head=())
        self.hierarchy = Hierarchy(in_features, dimensions, levels, whole)
        self.dense = Dense(whole[-1], *dense, dropout=dropout)

    def forward_features(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, num_features): the feature of each set."""
        values, mask, _ = as_padded(x, mask, self.in_features)
        return self.dense(self.hierarchy(values, mask)[-1].features.squeeze(1))


class PointNet2Segmenter(Segmenter):
    """One class an element: down a hierarchy, and back up by feature propagation.

    `propagations` has the widths of an MLP for each level, the coarsest first. In the last one an
    element has its own features beside it and, if there are categories, its place and its set's
    category.

    >>> levels = [Level(32, [Scale(0.2, 16, (16, 32))]), Level(8, [Scale(0.4, 16, (32, 64))])]
    >>> model = PointNet2Segmenter(3, 21, levels, propagations=[(64, 32), (32, 32)])
    >>> model(torch.rand(2, 100, 3)).shape
    torch.Size([2, 100, 21])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        levels: Sequence[Level],
        propagations: Sequence[Widths],
        whole: Widths = (),
        num_categories: int = 0,
        dimensions: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(in_features, propagations[-1][-1], num_classes, num_categories)
        self.hierarchy = Hierarchy(in_features, dimensions, levels, whole)
        *widths, carried = self.hierarchy.widths
        if len(propagations) != len(widths):
            raise ValueError(f"{len(widths)} levels need as many propagations: {propagations}")
        if num_categories:
            widths[0] += dimensions + num_categories
        self.propagations = nn.ModuleList()
        for width, of_mlp in zip(reversed(widths), propagations, strict=True):
            self.propagations.append(FeaturePropagation(carried + width, of_mlp))
            carried = of_mlp[-1]
        self.dropout = nn.Dropout(dropout)

    def forward_features(
        self, x: Sets, category: Tensor | None = None, mask: Tensor | None = None
    ) -> Sets:
        """(B, N, num_features), or a SetBatch: the feature of each element."""
        values, mask, back = as_padded(x, mask, self.in_features)
        told = self.one_hot(category, values.dtype)
        cloud, *coarser = self.hierarchy(values, mask)
        if told is not None:
            told = told[:, None].expand(-1, values.shape[1], -1)
            known = torch.cat((cloud.features, cloud.places, told), -1)
            cloud = Cloud(cloud.places, known, cloud.mask)
        *clouds, coarse = cloud, *coarser
        for propagate, fine in zip(self.propagations, reversed(clouds), strict=True):
            coarse = propagate(fine, coarse)
        return back(self.dropout(coarse.features))


@register_model
def pointnet2_mnist(**overrides: Any) -> PointNet2Classifier:
    """28 x 28 digits as sets of 784 pixels: single-scale, places in the plane."""
    settings: dict[str, Any] = {
        "in_features": 3,
        "num_classes": 10,
        "dimensions": 2,
        "levels": [
            Level(512, [Scale(0.2, 32, (64, 64, 128))]),
            Level(128, [Scale(0.4, 64, (128, 128, 256))]),
        ],
        "dropout": 0.5,
    }
    return PointNet2Classifier(**settings | overrides)


@register_model
def pointnet2_modelnet40(**overrides: Any) -> PointNet2Classifier:
    """Point clouds with normals, 40 classes of objects: multi-scale."""
    settings: dict[str, Any] = {
        "in_features": 6,
        "num_classes": 40,
        "levels": [
            Level(
                512,
                [
                    Scale(0.1, 16, (32, 32, 64)),
                    Scale(0.2, 32, (64, 64, 128)),
                    Scale(0.4, 128, (64, 96, 128)),
                ],
            ),
            Level(
                128,
                [
                    Scale(0.2, 32, (64, 64, 128)),
                    Scale(0.4, 64, (128, 128, 256)),
                    Scale(0.8, 128, (128, 128, 256)),
                ],
            ),
        ],
        "dropout": 0.6,
    }
    return PointNet2Classifier(**settings | overrides)


@register_model
def pointnet2_shapenetpart(**overrides: Any) -> PointNet2Segmenter:
    """50 parts of objects of 16 categories: single-scale."""
    settings: dict[str, Any] = {
        "in_features": 3,
        "num_classes": 50,
        "num_categories": 16,
        "levels": [
            Level(512, [Scale(0.2, 64, (64, 64, 128))]),
            Level(128, [Scale(0.4, 64, (128, 128, 256))]),
        ],
        "whole": (256, 512, 1024),
        "propagations": [(256, 256), (256, 128), (128, 128, 128, 128)],
        "dropout": 0.5,
    }
    return PointNet2Segmenter(**settings | overrides)


@register_model
def pointnet2_scannet(**overrides: Any) -> PointNet2Segmenter:
    """21 labels of points of indoor scenes: single-scale, four levels."""
    settings: dict[str, Any] = {
        "in_features": 3,
        "num_classes": 21,
        "levels": [
            Level(1024, [Scale(0.1, 32, (32, 32, 64))]),
            Level(256, [Scale(0.2, 32, (64, 64, 128))]),
            Level(64, [Scale(0.4, 32, (128, 128, 256))]),
            Level(16, [Scale(0.8, 32, (256, 256, 512))]),
        ],
        "propagations": [(256, 256), (256, 256), (256, 128), (128, 128, 128, 128)],
        "dropout": 0.5,
    }
    return PointNet2Segmenter(**settings | overrides)
