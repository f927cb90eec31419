"""Metrics as counts on the device: the same however the sets are batched, in any order.

Each metric takes batches by `update`, which waits for nothing, and gives numbers by `compute`.
Shares are from 0 to 1. `per_class` has them for each class, NaN where there is nothing to measure.
B sets, N elements a set, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


class ClassificationMetrics:
    """Accuracy over all sets, and its mean over the classes that occur.

    >>> metrics = ClassificationMetrics(num_classes=3)
    >>> metrics.update(torch.tensor([[2.0, 1, 0], [0, 1, 2], [0, 2, 1]]), torch.tensor([0, 2, 2]))
    >>> metrics.compute()
    {'overall_accuracy': 0.666..., 'mean_class_accuracy': 0.75}
    >>> metrics.per_class()
    {'accuracy': tensor([1.0000,    nan, 0.5000], dtype=torch.float64)}
    """

    def __init__(self, num_classes: int, device: torch.device | str | None = None) -> None:
        self.confusion = _confusion(num_classes, device)  # (C, C), true x predicted

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Logits (B, C), the class of each set (B,)."""
        _check_logits(logits, target, len(self.confusion), dimensions=1)
        _count(self.confusion, target, logits.argmax(-1))

    def compute(self) -> dict[str, float]:
        _check_counted(self.confusion)
        accuracy = _share(self.confusion.diagonal().sum(), self.confusion.sum())
        mean = self.per_class()["accuracy"].nanmean()
        return {"overall_accuracy": accuracy.item(), "mean_class_accuracy": mean.item()}

    def per_class(self) -> dict[str, Tensor]:
        return {"accuracy": _share(self.confusion.diagonal(), self.confusion.sum(1))}


class PartMetrics:
    """How well the parts of shapes of known categories are told apart.

    The IoU of a shape is the mean, over the parts of its category, of intersection by union; a part
    that is neither there nor predicted counts 1. The instance mIoU is the mean over shapes; the
    class mIoU first takes the mean over the shapes of each category that occurs.

    The predicted part is the largest logit of all parts, as the paper has it, or (`_own_parts`) of
    those of the shape's category, as PointNet++ has it.

    >>> metrics = PartMetrics([[0, 1], [2]])
    >>> logits = torch.tensor([[[3.0, 2, 1], [3, 2, 1], [1, 2, 3]]])
    >>> metrics.update(logits, parts=torch.tensor([[0, 0, 1]]), category=torch.tensor([0]))
    >>> for name, value in metrics.compute().items():
    ...     print(f"{name} {value:.3f}")
    instance_miou 0.500
    class_miou 0.500
    point_accuracy 0.667
    instance_miou_own_parts 1.000
    class_miou_own_parts 1.000
    point_accuracy_own_parts 1.000
    """

    def __init__(
        self,
        parts_of_category: Sequence[Sequence[int]],
        device: torch.device | str | None = None,
    ) -> None:
        every = sorted(part for parts in parts_of_category for part in parts)
        if not every or every != list(range(len(every))) or not all(parts_of_category):
            raise ValueError(
                f"each part 0, 1, ... is of one category, and none is empty: {parts_of_category}"
            )
        is_own = [[part in parts for part in every] for parts in parts_of_category]
        self.is_own = torch.tensor(is_own, device=device)  # (C, parts)
        self.shapes = torch.zeros(len(is_own), dtype=torch.int64, device=device)
        self.points = torch.zeros((), dtype=torch.int64, device=device)
        # Below, the first row is for all parts, the second for the category's own.
        self.iou_sum = torch.zeros(2, len(is_own), dtype=torch.float64, device=device)
        self.correct = torch.zeros(2, dtype=torch.int64, device=device)

    def update(self, logits: Tensor, parts: Tensor, category: Tensor) -> None:
        """Logits (B, N, parts), the part of each point (B, N), the category of each shape (B,)."""
        num_categories, num_parts = self.is_own.shape
        _check_logits(logits, parts, num_parts, dimensions=2)
        if category.shape != parts.shape[:1]:
            raise ValueError(
                f"{len(parts)} shapes need as many categories, got shape {tuple(category.shape)}"
            )
        _check_range("categories", category, num_categories)
        category = category.long()
        own = self.is_own[category]  # (B, parts)
        among_own = logits.masked_fill(~own[:, None], -torch.inf)
        predicted = torch.stack((logits.argmax(-1), among_own.argmax(-1)))  # (2, B, N)
        true = parts.long().expand_as(predicted)
        hit = (predicted == true).long()
        empty = torch.zeros(2, *own.shape, dtype=torch.int64, device=own.device)
        everywhere = torch.ones_like(hit)
        intersection = empty.scatter_add(-1, true, hit)
        union = (
            empty.scatter_add(-1, true, everywhere).scatter_add(-1, predicted, everywhere)
            - intersection
        )
        iou = torch.where(union > 0, _share(intersection, union), 1)
        self.iou_sum.index_add_(1, category, (iou * own).sum(-1) / own.sum(-1))
        self.shapes.index_add_(0, category, torch.ones_like(category))
        self.correct.add_(hit.sum((1, 2)))
        self.points.add_(parts.numel())

    def compute(self) -> dict[str, float]:
        _check_counted(self.shapes)
        values = {}
        for row, suffix in enumerate(("", "_own_parts")):
            instance = self.iou_sum[row].sum() / self.shapes.sum()
            values["instance_miou" + suffix] = instance.item()
            values["class_miou" + suffix] = self.per_class()["iou" + suffix].nanmean().item()
            values["point_accuracy" + suffix] = _share(self.correct[row], self.points).item()
        return values

    def per_class(self) -> dict[str, Tensor]:
        """(C,) for each category."""
        iou, iou_own_parts = _share(self.iou_sum, self.shapes)
        return {"iou": iou, "iou_own_parts": iou_own_parts}


class SceneMetrics:
    """Accuracy by voxel and by point, and mean IoU by point, over points that are annotated.

    Label 0 marks a point without an annotation: it is never asked for, though predicting it
    anywhere else is an error. The mean IoU is over the other classes that are there or predicted.

    The voxel accuracy is that of PointNet++. Each cloud has a grid of its own that begins at the
    least coordinates of its points. A voxel takes both its true and its predicted label from the
    first of its points, counts if that point is annotated, and is correct if the labels agree.
    (PointNet++ numbers voxels in a way that lets two at opposite borders share a number. Here no
    two do.) A cloud is whatever one row of the batch holds, there a 1.5 m column of a scene, of
    which `mask` leaves out a margin.

    >>> metrics = SceneMetrics(num_classes=3)
    >>> logits = torch.eye(3)[[1, 1, 2, 0]][None]  # predicts 1, 1, 2, 0
    >>> points = torch.tensor([0.0, 0.01, 0.015, 0.5])[:, None].expand(1, 4, 3)
    >>> metrics.update(logits, torch.tensor([[1, 1, 1, 0]]), points)
    >>> metrics.compute()
    {'voxel_accuracy': 1.0, 'point_accuracy': 0.666..., 'mean_iou': 0.333...}
    """

    def __init__(
        self,
        num_classes: int,
        voxel_size: float = 0.02,
        device: torch.device | str | None = None,
    ) -> None:
        if not voxel_size > 0:
            raise ValueError(f"the size of a voxel is positive, got {voxel_size}")
        self.voxel_size = voxel_size
        # (C, C), true x predicted
        self.points = _confusion(num_classes, device)
        self.voxels = _confusion(num_classes, device)

    def update(
        self, logits: Tensor, target: Tensor, points: Tensor, mask: Tensor | None = None
    ) -> None:
        """Logits (B, N, C), classes (B, N), coordinates (B, N, 3); mask (B, N): points that count.

        Coordinates are in the unit of `voxel_size`.
        """
        _check_logits(logits, target, len(self.points), dimensions=2)
        if points.shape != (*target.shape, 3):
            raise ValueError(
                f"coordinates of {tuple(target.shape)} points are {(*target.shape, 3)}, "
                f"got {tuple(points.shape)}"
            )
        if mask is None:
            mask = torch.ones_like(target, dtype=torch.bool)
        if mask.dtype != torch.bool or mask.shape != target.shape:
            raise ValueError(
                f"a mask here is bool {tuple(target.shape)}, got {mask.dtype} {tuple(mask.shape)}"
            )
        prediction = logits.argmax(-1)
        _count(self.points, target, prediction, mask)
        _count(self.voxels, target, prediction, first_in_voxel(points, mask, self.voxel_size))

    def compute(self) -> dict[str, float]:
        points, voxels = self.points[1:], self.voxels[1:]
        _check_counted(points)
        # Without column 0 either, the diagonal counts what is correct.
        return {
            "voxel_accuracy": _share(voxels[:, 1:].diagonal().sum(), voxels.sum()).item(),
            "point_accuracy": _share(points[:, 1:].diagonal().sum(), points.sum()).item(),
            "mean_iou": self.per_class()["iou"].nanmean().item(),
        }

    def per_class(self) -> dict[str, Tensor]:
        """(C,) for each class, NaN for class 0."""
        counts = self.points[1:]
        intersection = counts[:, 1:].diagonal()
        union = counts.sum(1) + counts[:, 1:].sum(0) - intersection
        return {"iou": F.pad(_share(intersection, union), (1, 0), value=torch.nan)}


class AnomalyMetrics:
    """How often the largest logit of a set's elements is at the odd one out.

    >>> metrics = AnomalyMetrics()
    >>> metrics.update(torch.tensor([[0.0, 3, 1], [2, 0, 1]]), torch.tensor([1, 2]))
    >>> metrics.compute()
    {'accuracy': 0.5}
    """

    def __init__(self, device: torch.device | str | None = None) -> None:
        self.correct = torch.zeros((), dtype=torch.int64, device=device)
        self.sets = torch.zeros((), dtype=torch.int64, device=device)

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Logits (B, N), the position of the odd one out (B,)."""
        _check_logits(logits, target, logits.shape[-1], dimensions=1)
        self.correct.add_((logits.argmax(-1) == target).sum())
        self.sets.add_(len(target))

    def compute(self) -> dict[str, float]:
        _check_counted(self.sets)
        return {"accuracy": _share(self.correct, self.sets).item()}

    def per_class(self) -> dict[str, Tensor]:
        """Nothing: a set has an odd one out, not a class."""
        return {}


def first_in_voxel(points: Tensor, mask: Tensor, voxel_size: float) -> Tensor:
    """(B, N), True at the first point of each voxel; points (B, N, 3) out of the mask do not count.

    >>> points = torch.tensor([0.0, 0.5, 0.7, 2.5])[:, None].expand(1, 4, 3)
    >>> first_in_voxel(points, torch.ones(1, 4, dtype=torch.bool), voxel_size=1.0)
    tensor([[ True,  True, False,  True]])
    """
    points = points.double()  # as PointNet++ does: which side of a border depends on rounding
    least = points.masked_fill(~mask[..., None], torch.inf).amin(1, keepdim=True)
    x, y, z = ((points - least) / voxel_size).ceil().long().unbind(-1)
    # 20 bits an axis, which reach 20 km in steps of 2 cm
    voxel = torch.where(mask, x << 40 | y << 20 | z, -1)
    # Equal voxels become neighbours and, the sort being stable, the first point stays first.
    voxel, order = voxel.sort(dim=1, stable=True)
    first = voxel != F.pad(voxel[:, :-1], (1, 0), value=-1)
    return torch.zeros_like(mask).scatter(1, order, first)


def _confusion(num_classes: int, device: torch.device | str | None) -> Tensor:
    if num_classes < 1:
        raise ValueError(f"there is at least one class to measure, got {num_classes}")
    return torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)


def _count(
    confusion: Tensor, target: Tensor, prediction: Tensor, mask: Tensor | None = None
) -> None:
    # Not `bincount`, which waits for the largest index.
    cell = target.long() * len(confusion) + prediction
    once = torch.ones_like(cell) if mask is None else mask.long()
    confusion.view(-1).index_add_(0, cell.flatten(), once.flatten())


def _share(part: Tensor, whole: Tensor) -> Tensor:
    """NaN where the whole is 0."""
    return part.double() / whole


def _check_counted(counts: Tensor) -> None:
    if not counts.any():
        raise ValueError("nothing was counted yet: a metric needs an update before compute")


def _check_logits(logits: Tensor, target: Tensor, num_classes: int, dimensions: int) -> None:
    if target.ndim != dimensions or logits.shape != (*target.shape, num_classes):
        shape = ("B", "N")[:dimensions]
        raise ValueError(
            f"targets ({', '.join(shape)}) need logits ({', '.join(shape)}, {num_classes}), "
            f"got {tuple(target.shape)} and {tuple(logits.shape)}"
        )
    _check_range("targets", target, num_classes)


def _check_range(name: str, index: Tensor, count: int) -> None:
    """An index out of range is noticed where looking costs no wait; elsewhere CUDA asserts it."""
    if index.is_floating_point():
        raise TypeError(f"{name} are integers, got {index.dtype}")
    if index.device.type == "cpu" and not torch.compiler.is_compiling():
        unknown = index[(index < 0) | (index >= count)]
        if len(unknown):
            raise ValueError(f"{name} are 0..{count - 1}, got {int(unknown[0])}")
