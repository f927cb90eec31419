"""The three networks that every DuMLP-Pin model is a configuration of.

A trunk of stages turns elements into richer elements: each `Stage` makes a set feature and tells it
to every element. What follows the trunk depends on what is asked: one class a set, one class an
element, or which element does not belong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from dumlp_pin._layout import Sets, open_sets
from dumlp_pin.blocks import AggregationBlock, BroadcastBlock
from dumlp_pin.kernels.fuse import Fusible
from dumlp_pin.models.classifier import Classifier, Widths
from dumlp_pin.models.convnet import ConvNet
from dumlp_pin.models.segmenter import Segmenter
from dumlp_pin.models.surroundings import Surroundings
from dumlp_pin.sets import SetBatch, check_mask
from dumlp_pin.streaming import AggregationState


@dataclass(frozen=True)
class Stage:
    """Widths of one aggregation and the broadcast after it.

    Without `branches` there is no aggregation: the set's feature is given, as an object's category.
    """

    branches: Sequence[Widths]
    element: Widths
    set: Widths
    combined: Widths


def _stages(stages: Sequence[Stage | Mapping[str, Any]]) -> list[Stage]:
    """A recipe's file has tables where Python has stages."""
    return [stage if isinstance(stage, Stage) else Stage(**stage) for stage in stages]


class StageBlock(nn.Module):
    def __init__(self, stage: Stage, activations: Sequence[str | None]) -> None:
        super().__init__()
        self.aggregate = (
            AggregationBlock(stage.element[0], stage.branches, activations)
            if stage.branches
            else None
        )
        self.broadcast = BroadcastBlock(stage.element, stage.set, stage.combined)

    def forward(self, x: Sets, mask: Tensor | None = None, given: Tensor | None = None) -> Sets:
        y = given if self.aggregate is None else self.aggregate(x, mask)
        return self.broadcast(x, y, mask)


class PinClassifier(Classifier):
    """One class a set: stages, one aggregation, an MLP.

    With scales of `surroundings` elements are first told what is around them.

    >>> model = PinClassifier(3, 10, branches=[(16, 8), (16, 8)], activations=("softmax", None))
    >>> model(torch.rand(2, 64, 3)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        branches: Sequence[Widths],
        activations: Sequence[str | None],
        head: Widths = (256,),
        stages: Sequence[Stage | Mapping[str, Any]] = (),
        surroundings: Sequence[float] = (),
        dropout: float = 0.0,
    ) -> None:
        stages = _stages(stages)
        num_features = math.prod(widths[-1] for widths in branches)
        super().__init__(in_features, num_features, num_classes, head)
        self.surroundings = Surroundings(in_features, surroundings) if surroundings else None
        self.stages = nn.ModuleList(StageBlock(stage, activations) for stage in stages)
        width = self.surroundings.out_features if self.surroundings else in_features
        width = stages[-1].combined[-1] if stages else width
        self.aggregate = AggregationBlock(width, branches, activations, dropout)

    def forward_features(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, num_features): the feature of each set."""
        if self.surroundings is not None:
            x = self.surroundings(x, mask)
        for stage in self.stages:
            x = stage(x, mask)
        return self.aggregate(x, mask)

    def stream(self) -> AggregationState:
        """For one set that comes in chunks (n, F); results are its logits (num_classes,)."""
        telling = len(self.stages) + (self.surroundings is not None)
        if telling:
            raise TypeError(
                f"this model cannot stream: each of its {telling} stages tells every "
                "element about the whole set, which takes all elements once more"
            )
        return AggregationState(self.aggregate, self.head)


class PinSegmenter(Segmenter):
    """One class an element: stages. A category that is given is told to the elements first.

    >>> stage = Stage(branches=[(16, 4), (16, 4)], element=(3, 32), set=(16, 32), combined=(64,))
    >>> model = PinSegmenter(3, 21, stages=[stage], activations=("softmax", None))
    >>> model(torch.rand(2, 100, 3)).shape
    torch.Size([2, 100, 21])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        stages: Sequence[Stage | Mapping[str, Any]],
        activations: Sequence[str | None],
        num_categories: int = 0,
    ) -> None:
        stages = _stages(stages)
        super().__init__(in_features, stages[-1].combined[-1], num_classes, num_categories)
        self.stages = nn.ModuleList(StageBlock(stage, activations) for stage in stages)

    def forward_features(
        self, x: Sets, category: Tensor | None = None, mask: Tensor | None = None
    ) -> Sets:
        """(B, N, num_features), or a SetBatch: the feature of each element."""
        given = self.one_hot(category, x.dtype)
        for stage in self.stages:
            x = stage(x, mask, given)
        return x


class AnomalyDetector(Fusible):
    """Which element does not belong: every element is scored beside the feature of its set.

    `extractor` makes the set feature from elements of `width` features; images become such elements
    by the `backbone`, vectors need none.

    >>> extractor = AggregationBlock(8, [(16, 2), (16, 4)], ("softmax", None))
    >>> AnomalyDetector(extractor, width=8)(torch.rand(2, 10, 8)).shape
    torch.Size([2, 10])
    """

    task = "anomaly detection"

    def __init__(self, extractor: nn.Module, width: int, backbone: ConvNet | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.extractor = extractor
        self.width = width
        self.num_features = cast(int, extractor.out_features)
        self.reset_head()

    def reset_head(self) -> None:
        """A fresh scorer; the rest keeps its weights."""
        like = next(self.parameters(), None)  # plain pooling has no weights
        broadcast = BroadcastBlock((self.width,), (self.num_features,), (self.width,) * 3)
        self.head = nn.ModuleDict({"broadcast": broadcast, "score": nn.Linear(self.width, 1)})
        if like is not None:
            self.head.to(like)

    def forward_elements(self, x: Sets, mask: Tensor | None = None) -> Sets:
        """The elements as vectors: (B, N, width), or a SetBatch."""
        if self.backbone is None:
            return x
        if isinstance(x, SetBatch):
            return x.with_rows(self.backbone(x.rows))
        if mask is not None:
            check_mask(mask, x)
            mask = mask.flatten()
        return self.backbone(x.flatten(0, 1), mask).unflatten(0, x.shape[:2])

    def forward_features(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, num_features): the feature of each set."""
        return self.extractor(self.forward_elements(x, mask), mask)

    def forward_head(self, elements: Sets, features: Tensor, mask: Tensor | None = None) -> Sets:
        """(B, N), -inf in the padding, or a SetBatch (T, 1): logits of being the odd one out."""
        combined = self.head["broadcast"](elements, features, mask)
        values, sets = open_sets(combined, mask)
        score = self.head["score"](values)
        if isinstance(combined, SetBatch):
            return sets.wrap(score)
        return sets.fill(score, -torch.inf).squeeze(-1)

    def forward(self, x: Sets, mask: Tensor | None = None) -> Sets:
        """Logits over the elements of each set; their softmax is the chance to be the anomaly."""
        elements = self.forward_elements(x, mask)
        return self.forward_head(elements, self.extractor(elements, mask), mask)
