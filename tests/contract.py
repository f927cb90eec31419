"""What the laws of this package are checked on: every block and every registered model.

A new model is checked by being registered; a new block by a line in BLOCKS. The networks that the
paper compares with are checked narrow: the same classes with fewer layers, features, points and
neighbours, since in full they would take minutes.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dumlp_pin import MLP, AggregationBlock, BroadcastBlock, SetBatch, create_model, list_models
from dumlp_pin.batchnorm import BatchNorm
from dumlp_pin.models import AnomalyDetector, Segmenter
from dumlp_pin.models.convnet import ConvNet
from dumlp_pin.models.pointnet2 import Level, Scale
from dumlp_pin.models.pooling import PoolingBlock
from dumlp_pin.models.set_transformer import PMA


@dataclass(frozen=True)
class Subject:
    """Something that takes sets, and how to feed it."""

    name: str
    make: Callable[[], nn.Module]
    element_shape: tuple[int, ...]
    per_element: bool
    set_features: int = 0  # takes a feature (B, set_features) of every set
    categories: int = 0  # takes a category (B,) of every set

    def build(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
        """A module in a state that training could have left: no norm is at its start.

        Dropout is off in training too: forms of the same sets draw different numbers.
        """
        torch.manual_seed(seed)
        module = self.make()
        for part in module.modules():
            if isinstance(part, BatchNorm):
                for buffer in (part.running_mean, part.bias):
                    assert buffer is not None
                    nn.init.normal_(buffer, std=0.2)
                for buffer in (part.running_var, part.weight):
                    assert buffer is not None
                    nn.init.uniform_(buffer, 0.5, 1.5)
            elif isinstance(part, nn.Dropout):
                part.p = 0.0
        return module.to(dtype).eval()

    def draw(self, sizes: list[int], seed: int = 0, dtype: torch.dtype = torch.float64) -> Sample:
        generator = torch.Generator().manual_seed(seed)
        B = len(sizes)
        sets = [
            torch.randn(size, *self.element_shape, generator=generator, dtype=torch.float64)
            for size in sizes
        ]
        given: dict[str, Tensor] = {}
        if self.set_features:
            y = torch.randn(B, self.set_features, generator=generator, dtype=torch.float64)
            given["y"] = y.to(dtype)
        if self.categories:
            given["category"] = torch.randint(self.categories, (B,), generator=generator)
        return Sample([s.to(dtype) for s in sets], given)

    def per_set(self, output: Any, sizes: list[int]) -> list[Tensor]:
        """The output as one tensor a set: what the form of the input does not change."""
        if not self.per_element:
            return list(output)
        if isinstance(output, SetBatch):
            output = output.to_list()
        outputs = [out[:size] for out, size in zip(output, sizes, strict=True)]
        return [out[:, None] if out.ndim == 1 else out for out in outputs]


@dataclass
class Sample:
    sets: list[Tensor]
    given: dict[str, Tensor]

    @property
    def sizes(self) -> list[int]:
        return [len(s) for s in self.sets]

    def packed(self) -> dict[str, Any]:
        return {"x": SetBatch.from_list(self.sets), **self.given}

    def masked(self, garbage: float = 0.0, extra: int = 0) -> dict[str, Any]:
        """Padded to the largest set and `extra` more, with `garbage` where no element is."""
        x, mask = SetBatch.from_list(self.sets).to_padded(max(self.sizes) + extra)
        where = mask.view(*mask.shape, *[1] * (x.ndim - 2))
        return {"x": torch.where(where, x, garbage), **self.given, "mask": mask}

    def dense(self) -> dict[str, Any]:
        return {"x": torch.stack(self.sets), **self.given}

    def only(self, b: int) -> Sample:
        return Sample([self.sets[b]], {key: value[b : b + 1] for key, value in self.given.items()})

    def reordered(self, seed: int) -> tuple[Sample, list[Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        orders = [torch.randperm(size, generator=generator) for size in self.sizes]
        pairs = zip(self.sets, orders, strict=True)
        return Sample([s[order] for s, order in pairs], self.given), orders


def _aggregation(
    branches: list[tuple[int, ...]], activations: list[str | None]
) -> Callable[[], nn.Module]:
    return lambda: AggregationBlock(6, branches, activations, scale=0.5)


ONE, TWO, THREE, FOUR = [(16, 5)], [(16, 5)] * 2, [(16, 5), (8, 3), (2,)], [(3,)] * 4

BLOCKS = [
    Subject("mlp", lambda: MLP((6, 16, 5)), (6,), per_element=True),
    Subject("aggregation_1", _aggregation(ONE, ["relu"]), (6,), False),
    Subject("aggregation_softmax", _aggregation(TWO, ["softmax", None]), (6,), False),
    Subject("aggregation_squash", _aggregation(TWO, ["squash", "elu"]), (6,), False),
    Subject("aggregation_authors", _aggregation(TWO, ["squash_authors", "softmax"]), (6,), False),
    Subject("aggregation_3", _aggregation(THREE, ["softmax", None, "relu"]), (6,), False),
    Subject("aggregation_4", _aggregation(FOUR, ["softmax", None, None, "elu"]), (6,), False),
    Subject(
        "broadcast",
        lambda: BroadcastBlock((6, 16), (4, 8), (16, 5)),
        (6,),
        per_element=True,
        set_features=4,
    ),
    Subject(
        "broadcast_bare",
        lambda: BroadcastBlock((6,), (4,), (16,)),
        (6,),
        per_element=True,
        set_features=4,
    ),
    Subject(
        "broadcast_cross",
        lambda: BroadcastBlock((6, 8), (4,), (16, 5), cross_term=True),
        (6,),
        per_element=True,
        set_features=4,
    ),
]


def _detector(extractor: nn.Module) -> AnomalyDetector:
    return AnomalyDetector(extractor, width=8, backbone=ConvNet(3, (2, 4, 4, 8, 8, 8)))


DETECTORS: dict[str, Callable[[], nn.Module]] = {
    "dumlp_pin_celeba": lambda: _detector(AggregationBlock(8, [(8, 2), (8, 4)], ("softmax", None))),
    "maxpool_celeba": lambda: _detector(PoolingBlock("max", (8,), (8, 8))),
    "meanpool_celeba": lambda: _detector(PoolingBlock("mean", (8,), (8, 8))),
    "pointnet_celeba": lambda: _detector(PoolingBlock("max", (8, 8), (8, 8))),
    "deepsets_celeba": lambda: _detector(PoolingBlock("mean", (8, 4, 8), (8, 4, 8))),
    "set_transformer_celeba": lambda: _detector(PMA(8, heads=2)),
}

NETS = {
    "input_net": {"element": (4, 8), "after": (4,)},
    "feature_net": {"element": (4, 8), "after": (4,)},
}
POINTNET = {"first": (6, 8), "second": (8, 12), "dense": (8, 8), **NETS}
LEVELS = [Level(12, [Scale(1.0, 6, (4, 8))])]
TWO_SCALES = [Level(12, [Scale(0.7, 4, (4, 8)), Scale(1.5, 6, (4, 4))])]
POINT_TRANSFORMER = {"widths": (4, 8), "samples": (12,), "neighbours": 4, "attention": 8}

# The overrides that make a network narrow. What is not here is checked as it is.
NARROW: dict[str, dict[str, Any]] = {
    "pointnet_mnist": POINTNET,
    "pointnet_modelnet40": POINTNET,
    "pointnet_scannet": POINTNET,
    "pointnet_shapenetpart": POINTNET | {"first": (4, 6, 8)},
    "pointnet2_mnist": {"levels": LEVELS, "whole": (8, 12), "dense": (8,)},
    "pointnet2_modelnet40": {"levels": TWO_SCALES, "whole": (8, 12), "dense": (8,)},
    "pointnet2_scannet": {"levels": LEVELS, "propagations": [(8, 8)]},
    "pointnet2_shapenetpart": {
        "levels": LEVELS,
        "whole": (8, 12),
        "propagations": [(8, 8), (8, 8)],
    },
    "deepsets_modelnet40": {"equivariant": (8, 8, 8), "dense": (8,)},
    "set_transformer_modelnet40": {"width": 8, "heads": 2, "points": 4, "blocks": 1},
    "pct_modelnet40": {
        "embedding": (4, 8),
        "local": (8,),
        "samples": (12,),
        "neighbours": 4,
        "attentions": 1,
        "fused": 12,
        "dense": (8,),
    },
    "pct_shapenetpart": {
        "embedding": (4, 8),
        "local": (8,),
        "neighbours": 4,
        "attentions": 1,
        "fused": 12,
        "category": 4,
        "decoder": (8, 8),
    },
    "point_transformer_modelnet40": POINT_TRANSFORMER | {"dense": (8,)},
    "point_transformer_shapenetpart": POINT_TRANSFORMER | {"middle": (8,), "decoder": (8,)},
}


def _subject_of(name: str) -> Subject:
    if name in DETECTORS:
        return Subject(name, DETECTORS[name], (3, 9, 8), per_element=True)
    make = functools.partial(create_model, name, **NARROW.get(name, {}))
    model = make()
    return Subject(
        name,
        make,
        (model.in_features,),
        per_element=isinstance(model, Segmenter),
        categories=getattr(model, "num_categories", 0),
    )


def _parts(subject: Subject) -> frozenset[type[nn.Module]]:
    return frozenset(type(part) for part in subject.make().modules())


MODELS = [_subject_of(name) for name in list_models()]
SUBJECTS = BLOCKS + MODELS
# For laws that take seconds to check: every block, and so many models that no part is left out.
_by_parts = {_parts(model): model for model in MODELS}
KINDS = BLOCKS + [
    model for parts, model in _by_parts.items() if not any(parts < others for others in _by_parts)
]


# The gradients of the weights, the batch norm statistics, and the gradient of the input.
Step = tuple[dict[str, Tensor], dict[str, Tensor], Tensor]


def gradients(
    subject: Subject, module: nn.Module, inputs: dict[str, Any], sizes: list[int]
) -> Step:
    """What one training step computes, on a copy of the module."""
    module = copy.deepcopy(module).train()
    x = inputs["x"]
    leaf = (x.rows if isinstance(x, SetBatch) else x).clone().requires_grad_()
    output = module(**inputs | {"x": x.with_rows(leaf) if isinstance(x, SetBatch) else leaf})
    outputs = torch.cat([out.flatten() for out in subject.per_set(output, sizes)])
    weights = torch.randn(len(outputs), generator=torch.Generator().manual_seed(1))
    # A square, so that the gradient depends on the output.
    (weights.to(outputs) * outputs.square()).sum().backward()
    assert leaf.grad is not None
    parameters = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return parameters, dict(module.named_buffers()), leaf.grad
