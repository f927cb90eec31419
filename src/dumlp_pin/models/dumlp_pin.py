"""The paper's models, each a configuration of one of the three networks.

The paper's figures with the layer widths are lost. Those of ModelNet40 and ShapeNetPart are known
from the authors' checkpoints; those of MNIST-L, ScanNet and CelebA are reconstructions that agree
with the printed parameter counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dumlp_pin.blocks import AggregationBlock
from dumlp_pin.models.classifier import Widths
from dumlp_pin.models.convnet import ConvNet
from dumlp_pin.models.networks import (
    AnomalyDetector,
    PinClassifier,
    PinSegmenter,
    Stage,
)
from dumlp_pin.models.registry import register_model

TWO_SOFTMAX = ("softmax", "softmax")
ONE_SOFTMAX = ("softmax", None)


def _twice(*widths: int) -> list[Widths]:
    return [widths, widths]


@register_model
def dumlp_pin_digits(**overrides: Any) -> PinClassifier:
    """8 x 8 digits as sets of 64 pixels."""
    settings: dict[str, Any] = {
        "in_features": 3,
        "num_classes": 10,
        "branches": _twice(32, 64, 16),
        "activations": TWO_SOFTMAX,
        "head": (64,),
    }
    return PinClassifier(**settings | overrides)


@register_model
def dumlp_pin_mnist_s(**overrides: Any) -> PinClassifier:
    """28 x 28 digits as sets of 784 pixels: one aggregation."""
    settings: dict[str, Any] = {
        "in_features": 3,
        "num_classes": 10,
        "branches": _twice(32, 128, 32),
        "activations": TWO_SOFTMAX,
    }
    return PinClassifier(**settings | overrides)


@register_model
def dumlp_pin_mnist_l(**overrides: Any) -> PinClassifier:
    """28 x 28 digits as sets of 784 pixels: three aggregations, two broadcasts."""
    settings: dict[str, Any] = {
        "in_features": 3,
        "num_classes": 10,
        "stages": (
            Stage(_twice(32, 128, 32), (3, 32, 128), (1024, 256, 128), (128, 128)),
            Stage(_twice(128, 32), (128, 128), (1024, 256, 128), (256, 128)),
        ),
        "branches": _twice(128, 32),
        "activations": TWO_SOFTMAX,
    }
    return PinClassifier(**settings | overrides)


@register_model
def dumlp_pin_modelnet40(**overrides: Any) -> PinClassifier:
    """Point clouds with normals, 40 classes of objects."""
    settings: dict[str, Any] = {
        "in_features": 6,
        "num_classes": 40,
        "branches": _twice(32, 128, 32),
        "activations": ONE_SOFTMAX,
    }
    return PinClassifier(**settings | overrides)


@register_model
def dumlp_pin_modelnet40_plus(**overrides: Any) -> PinClassifier:
    """Point clouds with normals, 40 classes of objects; elements know what is around them."""
    settings: dict[str, Any] = {"surroundings": (0.2, 0.4), "dropout": 0.3}
    return dumlp_pin_modelnet40(**settings | overrides)


def _segmenter(stages: Sequence[Stage], num_classes: int, overrides: dict) -> PinSegmenter:
    settings: dict[str, Any] = {
        "in_features": 3,
        "num_classes": num_classes,
        "stages": stages,
        "activations": ONE_SOFTMAX,
    }
    return PinSegmenter(**settings | overrides)


TELL_CATEGORY = Stage([], (3, 32, 128), (16, 128, 128), (128, 128))
LAST_STAGE = Stage(_twice(128, 16), (128, 128), (256, 128), (1024, 256))


def _part_segmenter(broadcasts: int, overrides: dict) -> PinSegmenter:
    if broadcasts < 2:
        raise ValueError(f"the first and the last broadcast are always there, got {broadcasts}")
    middle = Stage(_twice(128, 16), (128, 128), (256, 128), (128, 128))
    stages = [TELL_CATEGORY, *[middle] * (broadcasts - 2), LAST_STAGE]
    return _segmenter(stages, 50, {"num_categories": 16} | overrides)


@register_model
def dumlp_pin_shapenetpart_s(broadcasts: int = 2, **overrides: Any) -> PinSegmenter:
    """50 parts of objects of 16 categories: two broadcasts."""
    return _part_segmenter(broadcasts, overrides)


@register_model
def dumlp_pin_shapenetpart_l(broadcasts: int = 4, **overrides: Any) -> PinSegmenter:
    """50 parts of objects of 16 categories: four broadcasts."""
    return _part_segmenter(broadcasts, overrides)


FROM_POINTS = Stage(_twice(32, 128, 16), (3, 32, 128), (256, 128), (128,))


@register_model
def dumlp_pin_scannet_s(**overrides: Any) -> PinSegmenter:
    """21 labels of points of indoor scenes: two broadcasts."""
    return _segmenter([FROM_POINTS, LAST_STAGE], 21, overrides)


@register_model
def dumlp_pin_scannet_l(**overrides: Any) -> PinSegmenter:
    """21 labels of points of indoor scenes: three broadcasts."""
    middle = Stage(_twice(128, 16), (128, 128), (256, 128), (128,))
    return _segmenter([FROM_POINTS, middle, LAST_STAGE], 21, overrides)


@register_model
def dumlp_pin_celeba(
    branches: Sequence[Widths] = ((128, 2), (128, 128)), **overrides: Any
) -> AnomalyDetector:
    """The face that lacks what the nine others share; images of 49 x 40."""
    settings: dict[str, Any] = {
        "extractor": AggregationBlock(256, branches, ONE_SOFTMAX),
        "width": 256,
        "backbone": ConvNet(3, (32, 64, 128, 128, 256, 256)),
    }
    return AnomalyDetector(**settings | overrides)
