"""PointNet (Qi et al., 2017): an MLP on every element, the maximum over the set, an MLP on that.

Two small nets of the same kind look at the whole set and turn its elements, first the points and
then their features. In training, PointNet adds a term to the loss that draws the turn of features
towards an orthogonal matrix; here every network is trained by the loss of its task alone, and this
one starts from the identity, which is orthogonal.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dumlp_pin._layout import Sets, SetsT, open_sets, without_padding
from dumlp_pin.blocks import MLP, BroadcastBlock
from dumlp_pin.functional import ACTIVATIONS, set_max
from dumlp_pin.models.classifier import Classifier, Widths
from dumlp_pin.models.dense import Dense
from dumlp_pin.models.networks import AnomalyDetector
from dumlp_pin.models.pooling import pooling_celeba
from dumlp_pin.models.registry import register_model
from dumlp_pin.models.segmenter import Segmenter

relu = ACTIVATIONS["relu"]

SPACE = 3  # points and normals are vectors of so many numbers


class TransformNet(nn.Module):
    """PointNet's T-net: makes a matrix of the whole set, and multiplies each element by it.

    An element is one or more vectors of `size` numbers, and each of them is multiplied, so that
    normals turn with their points. `element` and `after` are the widths before and after the
    maximum. A fresh net gives the identity.

    >>> net, x = TransformNet(6, size=3), torch.rand(2, 5, 6)
    >>> torch.equal(net(x), x)
    True
    """

    def __init__(
        self,
        features: int,
        size: int,
        element: Widths = (64, 128, 1024),
        after: Widths = (512, 256),
    ) -> None:
        super().__init__()
        if features % size:
            raise ValueError(f"expected vectors of {size} numbers, got {features} features")
        self.size = size
        self.element = MLP((features, *element))
        self.after = MLP((element[-1], *after))
        self.matrix = nn.Linear(after[-1], size * size)
        nn.init.zeros_(self.matrix.weight)
        nn.init.zeros_(self.matrix.bias)

    def matrices(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, size, size): the matrix of each set."""
        pooled = set_max(relu(self.element(x, mask)), mask)
        change = self.matrix(F.relu(self.after(pooled))).unflatten(1, (self.size, self.size))
        return torch.eye(self.size, dtype=change.dtype, device=change.device) + change

    def forward(self, x: SetsT, mask: Tensor | None = None) -> SetsT:
        x = without_padding(x, mask)
        values, sets = open_sets(x, mask)
        matrices = self.matrices(x, mask)
        blocks = sets.to_blocks(values)
        vectors = blocks.unflatten(2, (-1, self.size)).flatten(1, 2)
        turned = (vectors @ sets.block_spread(matrices)).view_as(blocks)
        return sets.wrap(sets.from_blocks(turned))


class PointNetTrunk(nn.Module):
    """What PointNets have in common: turn, `first` layers, turn, `second` layers, maximum.

    `input_net` and `feature_net` override the widths of the two transform nets.
    """

    def __init__(
        self,
        in_features: int,
        first: Widths,
        second: Widths,
        input_net: dict[str, Widths],
        feature_net: dict[str, Widths],
    ) -> None:
        super().__init__()
        self.turn_input = TransformNet(in_features, SPACE, **input_net)
        self.first = nn.ModuleList(MLP(widths) for widths in pairwise((in_features, *first)))
        self.turn_features = TransformNet(first[-1], first[-1], **feature_net)
        self.second = nn.ModuleList(MLP(widths) for widths in pairwise((first[-1], *second)))

    def forward(self, x: Sets, mask: Tensor | None = None) -> tuple[list[Sets], Sets, Tensor]:
        """The elements after each layer, as turned features, and the maximum of the last."""
        layers = []
        x = self.turn_input(x, mask)
        for layer in self.first:
            x = relu(layer(x, mask))
            layers.append(x)
        x = turned = self.turn_features(x, mask)
        for layer in self.second:
            x = relu(layer(x, mask))
            layers.append(x)
        return layers, turned, set_max(x, mask)


class PointNetClassifier(Classifier):
    """One class a set: the trunk, and on its maximum the layers `dense`, each with dropout.

    >>> PointNetClassifier(6, 40)(torch.rand(2, 100, 6)).shape
    torch.Size([2, 40])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        first: Widths = (64, 64),
        second: Widths = (64, 128, 1024),
        dense: Widths = (512, 256),
        dropout: float = 0.3,
        input_net: dict[str, Widths] | None = None,
        feature_net: dict[str, Widths] | None = None,
    ) -> None:
        super().__init__(in_features, dense[-1], num_classes, head=())
        self.trunk = PointNetTrunk(in_features, first, second, input_net or {}, feature_net or {})
        self.dense = Dense(second[-1], *dense, dropout=dropout)

    def forward_features(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, num_features): the feature of each set."""
        _, _, largest = self.trunk(x, mask)
        return self.dense(largest)


class PointNetSegmenter(Segmenter):
    """One class an element: the maximum is carried back to the elements, then layers of `dense`.

    An element stands there as its turned features, or, with `every_layer`, as what it was after
    each layer of the trunk. Where PointNet appends the maximum to every element, the first layer
    of `dense` is a broadcast block: the same function, for W [x, y] is W_x x + W_y y, without a
    copy of y for every element.

    >>> PointNetSegmenter(3, 21)(torch.rand(2, 100, 3)).shape
    torch.Size([2, 100, 21])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        first: Widths = (64, 64),
        second: Widths = (64, 128, 1024),
        dense: Widths = (512, 256, 128),
        every_layer: bool = False,
        num_categories: int = 0,
        dropout: float = 0.0,
        input_net: dict[str, Widths] | None = None,
        feature_net: dict[str, Widths] | None = None,
    ) -> None:
        super().__init__(in_features, dense[-1], num_classes, num_categories)
        self.trunk = PointNetTrunk(in_features, first, second, input_net or {}, feature_net or {})
        self.every_layer = every_layer
        of_element = sum((*first, *second)) if every_layer else first[-1]
        of_set = second[-1] + num_categories
        self.broadcast = BroadcastBlock((of_element,), (of_set,), (dense[0],))
        self.dense = nn.ModuleList(MLP(widths) for widths in pairwise(dense))
        self.dropout = nn.Dropout(dropout)

    def forward_features(
        self, x: Sets, category: Tensor | None = None, mask: Tensor | None = None
    ) -> Sets:
        """(B, N, num_features), or a SetBatch: the feature of each element."""
        layers, x, y = self.trunk(x, mask)
        given = self.one_hot(category, y.dtype)
        if self.every_layer:
            values, sets = zip(*(open_sets(layer, mask) for layer in layers), strict=True)
            x = sets[0].wrap(torch.cat(values, -1))
        if given is not None:
            y = torch.cat([y, given], -1)
        values, sets = open_sets(self.broadcast(x, y, mask), mask)
        for layer in self.dense:
            values = F.relu(layer(self.dropout(values), mask))
        return sets.wrap(sets.fill(values, 0))


@register_model
def pointnet_mnist(**overrides: Any) -> PointNetClassifier:
    """28 x 28 digits as sets of 784 pixels, each a vector of place and grey."""
    settings: dict[str, Any] = {"in_features": 3, "num_classes": 10}
    return PointNetClassifier(**settings | overrides)


@register_model
def pointnet_modelnet40(**overrides: Any) -> PointNetClassifier:
    """Point clouds with normals, 40 classes; as published, without normals, in_features is 3."""
    settings: dict[str, Any] = {"in_features": 6, "num_classes": 40}
    return PointNetClassifier(**settings | overrides)


@register_model
def pointnet_shapenetpart(**overrides: Any) -> PointNetSegmenter:
    """50 parts of objects of 16 categories.

    Layers as published, but for the net that turns features: the published script has the widths
    256 and 1024 before the maximum, 7,979,451 parameters in all. With those of the classifier
    there are 7,831,803, and the paper's table has 7.83 million.
    """
    settings: dict[str, Any] = {
        "in_features": 3,
        "num_classes": 50,
        "first": (64, 128, 128),
        "second": (512, 2048),
        "dense": (256, 256, 128),
        "every_layer": True,
        "num_categories": 16,
        "dropout": 0.2,
        "input_net": {"after": (128, 128)},
    }
    return PointNetSegmenter(**settings | overrides)


@register_model
def pointnet_scannet(**overrides: Any) -> PointNetSegmenter:
    """21 labels of points of indoor scenes."""
    settings: dict[str, Any] = {"in_features": 3, "num_classes": 21}
    return PointNetSegmenter(**settings | overrides)


@register_model
def pointnet_celeba(
    element: Widths = (256, 256), after: Widths = (256, 256), **overrides: Any
) -> AnomalyDetector:
    """The odd face out by a linear layer, the maximum over the set, and a linear layer."""
    return pooling_celeba("max", element, after, overrides)
