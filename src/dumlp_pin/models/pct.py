"""PCT, the Point Cloud Transformer (Guo et al., 2021): offset attention between neighbourhoods.

The classifier is the one the authors released, and has their 2.88 M parameters. Its input is
coordinates alone, and its feature the maximum over the set; the mean beside it, which the paper
draws, would make it 3.4 M. The part segmenter keeps every point, as their paper says, where their
released one has no neighbourhoods; so its widths are put together here, see `pct_shapenetpart`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dumlp_pin._layout import Sets, without_padding
from dumlp_pin.blocks import MLP
from dumlp_pin.functional import set_max, set_mean
from dumlp_pin.models.classifier import Classifier, Widths
from dumlp_pin.models.dense import Dense
from dumlp_pin.models.groups import pool_groups, sample, surroundings
from dumlp_pin.models.neighbours import as_padded, gather
from dumlp_pin.models.registry import register_model
from dumlp_pin.models.segmenter import Segmenter

LEAK = 0.2  # the slope below zero where PCT has a leaky ReLU


class OffsetAttention(nn.Module):
    """x + ReLU(norm(linear(x - attention(x)))) for every element x of a set, over all of the set.

    Queries and keys are one linear map, a quarter as wide as x. Scores have a softmax over the
    queries, then the weights of each query are divided by their sum.

    >>> OffsetAttention(8)(torch.rand(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query_and_key = nn.Linear(width, width // 4, bias=False)
        self.value = nn.Linear(width, width)
        self.after = MLP((width, width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """From x (B, N, width) and mask (B, N) to (B, N, width)."""
        x = without_padding(x, mask)
        seen = self.weights(x, mask) @ self.value(x)
        return without_padding(x + F.relu(self.after(x - seen, mask)), mask)

    def weights(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, N, N): how much each query, a row, sees of each key; nothing of padding."""
        shared = self.query_and_key(x)
        score = shared @ shared.mT
        score = score.to(torch.promote_types(score.dtype, torch.float32))
        if mask is not None:
            score = score.masked_fill(~mask[:, :, None], torch.finfo(score.dtype).min)
        weight = score.softmax(1)
        if mask is not None:
            weight = weight.masked_fill(~mask[:, None], 0)
        return (weight / (1e-9 + weight.sum(2, keepdim=True))).to(x.dtype)


class NeighbourEmbedding(nn.Module):
    """What stands around each of `count` points, or around each point if `count` is None.

    Every one of the `neighbours` nearest is described by its difference from the centre and by the
    centre itself; an MLP on these, then the maximum over the neighbours.

    >>> embed = NeighbourEmbedding(8, 16, count=4, neighbours=3)
    >>> points, x, mask = embed(torch.rand(2, 10, 3), torch.rand(2, 10, 8))
    >>> points.shape, x.shape
    (torch.Size([2, 4, 3]), torch.Size([2, 4, 16]))
    """

    def __init__(
        self, in_features: int, out_features: int, count: int | None, neighbours: int
    ) -> None:
        super().__init__()
        self.count, self.neighbours = count, neighbours
        self.mlp = MLP((2 * in_features, out_features, out_features))

    def forward(
        self, points: Tensor, x: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Points (B, N, 3), features x (B, N, F) and mask, to those of the centres."""
        centres, own, chosen = points, x, mask
        if self.count is not None:
            index, chosen = sample(points, self.count, mask)
            centres, own = gather(points, index), gather(x, index)
        near, kept = surroundings(centres, chosen, points, mask, self.neighbours)
        own = own[:, :, None].expand(-1, -1, self.neighbours, -1)
        members = torch.cat([gather(x, near) - own, own], -1)
        return centres, pool_groups(self.mlp, members, kept), chosen


class PCTEncoder(nn.Module):
    """Points to features of points: neighbourhoods, attention layers, all of them side by side."""

    def __init__(
        self,
        in_features: int,
        embedding: Widths,
        local: Widths,
        samples: Sequence[int | None],
        neighbours: int,
        attentions: int,
        fused: int,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.embed = MLP((in_features, *embedding))
        widths = (embedding[-1], *local)
        self.neighbourhoods = nn.ModuleList(
            NeighbourEmbedding(before, after, count, neighbours)
            for before, after, count in zip(widths, local, samples, strict=False)
        )
        width = widths[-1]
        self.before = MLP((width, width, width))
        self.attentions = nn.ModuleList(OffsetAttention(width) for _ in range(attentions))
        self.fuse = MLP(((1 + attentions) * width, fused))

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """From x (B, N, in_features) and its mask to (B, M, fused) and its mask."""
        points = x[:, :, :3]
        x = F.relu(self.embed(x, mask))
        for neighbourhood in self.neighbourhoods:
            points, x, mask = neighbourhood(points, x, mask)
        layers = [x]
        x = F.relu(self.before(x, mask))
        for attention in self.attentions:
            x = attention(x, mask)
            layers.append(x)
        return F.leaky_relu(self.fuse(torch.cat(layers, -1), mask), LEAK), mask


class PCTClassifier(Classifier):
    """One class a set.

    Sampling goes down to `samples` points, once for each width in `local`; `neighbours` of each
    are looked at. There are `attentions` layers, and on the maximum of `fused` features are the
    layers `dense`, each with dropout.

    >>> model = PCTClassifier(3, 40, local=(32, 64), samples=(16, 8), neighbours=4)
    >>> model(torch.rand(2, 100, 3)).shape
    torch.Size([2, 40])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        embedding: Widths = (64, 64),
        local: Widths = (128, 256),
        samples: Sequence[int] = (512, 256),
        neighbours: int = 32,
        attentions: int = 4,
        fused: int = 1024,
        dense: Widths = (512, 256),
        dropout: float = 0.5,
    ) -> None:
        super().__init__(in_features, dense[-1], num_classes, head=())
        if len(samples) != len(local):
            raise ValueError(f"{len(local)} widths {local} need as many samples, got {samples}")
        self.encoder = PCTEncoder(
            in_features, embedding, local, samples, neighbours, attentions, fused
        )
        self.dense = Dense(fused, *dense, dropout=dropout)

    def forward_features(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, num_features): the feature of each set."""
        values, mask, _ = as_padded(x, mask, self.in_features)
        return self.dense(set_max(*self.encoder(values, mask)))


class PCTSegmenter(Segmenter):
    """One class an element, of a set whose category is given.

    As the classifier, but every point is kept; each is then told the maximum and the mean over the
    set and the category, in an MLP of widths `decoder`. Dropout follows its first layer.

    >>> model = PCTSegmenter(3, 50, num_categories=16, local=(32, 64), neighbours=4)
    >>> model(torch.rand(2, 100, 3), torch.tensor([0, 15])).shape
    torch.Size([2, 100, 50])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_categories: int,
        embedding: Widths = (128, 128),
        local: Widths = (128, 256),
        neighbours: int = 32,
        attentions: int = 4,
        fused: int = 1024,
        category: int = 64,
        decoder: Widths = (256, 256),
        dropout: float = 0.5,
    ) -> None:
        super().__init__(in_features, decoder[-1], num_classes, num_categories)
        self.encoder = PCTEncoder(
            in_features, embedding, local, [None] * len(local), neighbours, attentions, fused
        )
        self.category = MLP((num_categories, category))
        self.first = MLP((3 * fused + category, decoder[0]))
        self.dropout = nn.Dropout(dropout)
        self.rest = MLP(decoder)

    def forward_features(
        self, x: Sets, category: Tensor | None = None, mask: Tensor | None = None
    ) -> Sets:
        """(B, N, num_features), or a SetBatch: the feature of each element."""
        values, mask, back = as_padded(x, mask, self.in_features)
        told = F.leaky_relu(self.category(self.one_hot(category, values.dtype)), LEAK)
        fused, _ = self.encoder(values, mask)
        of_set = torch.cat([set_max(fused, mask), set_mean(fused, mask), told], -1)
        of_set = of_set[:, None].expand(-1, fused.shape[1], -1)
        z = self.dropout(F.relu(self.first(torch.cat([fused, of_set], -1), mask)))
        return back(F.relu(self.rest(z, mask)))


@register_model
def pct_modelnet40(**overrides: Any) -> PCTClassifier:
    """Point clouds without normals, 40 classes of objects."""
    settings: dict[str, Any] = {"in_features": 3, "num_classes": 40}
    return PCTClassifier(**settings | overrides)


@register_model
def pct_shapenetpart(**overrides: Any) -> PCTSegmenter:
    """50 parts of objects of 16 categories: 3.12 M parameters, where the paper prints 3.14 M.

    PCT's authors released no part segmenter that looks at neighbourhoods. This one embeds points
    as the one they released does, and looks at neighbourhoods and attends as their classifier; its
    decoder's widths are chosen by the printed count.
    """
    settings: dict[str, Any] = {"in_features": 3, "num_classes": 50, "num_categories": 16}
    return PCTSegmenter(**settings | overrides)
