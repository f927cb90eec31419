"""What `load` returns: a record for each kind of data, with its tensors and its classes' names."""

import itertools
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dumlp_pin.data.checks import DataError, check_finite, check_range, check_tensor

Task = Literal["classification", "part-segmentation", "semantic-segmentation", "anomaly-detection"]


@dataclass(frozen=True, kw_only=True)
class Split:
    """One split of a data set. B sets, N elements a set, T elements in all, F features."""

    task: ClassVar[Task]
    name: str
    split: str
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        """The number of sets, B."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise a `DataError` unless the tensors fit each other and hold legal values."""
        raise NotImplementedError

    def published_size(self) -> int:
        """What the publisher counts; sets, unless a subclass says otherwise."""
        return len(self)

    def tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True, kw_only=True)
class _Labelled(Split):
    """Sets with one class each."""

    labels: Tensor  # (B,) int64

    def __len__(self) -> int:
        return len(self.labels)

    def check(self) -> None:
        check_tensor("labels", self.labels, torch.int64, (None,))
        check_range("labels", self.labels, len(self.class_names))


@dataclass(frozen=True, kw_only=True)
class Images(_Labelled):
    """Grey images; `pixel_set` makes sets of them."""

    task: ClassVar[Task] = "classification"
    images: Tensor  # (B, H, W) uint8

    def check(self) -> None:
        super().check()
        check_tensor("images", self.images, torch.uint8, (len(self), None, None))


@dataclass(frozen=True, kw_only=True)
class Shapes(_Labelled):
    """Point clouds with one class each."""

    task: ClassVar[Task] = "classification"
    points: Tensor  # (B, N, F) float32: x y z, then the normal where F is 6

    def check(self) -> None:
        super().check()
        check_tensor("points", self.points, torch.float32, (len(self), None, None))
        if self.points.shape[2] not in (3, 6):
            raise DataError(f"points: expected 3 or 6 features, got {self.points.shape[2]}")
        check_finite("points", self.points)


@dataclass(frozen=True, kw_only=True)
class PartShapes(Shapes):
    """Point clouds of a known category (`labels`) with a part for every point.

    The parts of category c are `part_offsets[c]` up to, not including, `part_offsets[c + 1]`.
    """

    task: ClassVar[Task] = "part-segmentation"
    parts: Tensor  # (B, N) uint8
    part_offsets: Tensor  # (C + 1,) int64

    @property
    def parts_of_category(self) -> list[list[int]]:
        return [list(range(*bounds)) for bounds in itertools.pairwise(self.part_offsets.tolist())]

    def check(self) -> None:
        super().check()
        check_tensor("parts", self.parts, torch.uint8, self.points.shape[:2])
        check_tensor("part_offsets", self.part_offsets, torch.int64, (len(self.class_names) + 1,))
        check_range("parts", self.parts, int(self.part_offsets[-1]))


@dataclass(frozen=True, kw_only=True)
class Scenes(Split):
    """Point clouds of different sizes, one after another, with a class for every point.

    Scene b is rows `offsets[b]` up to, not including, `offsets[b + 1]`.
    """

    task: ClassVar[Task] = "semantic-segmentation"
    points: Tensor  # (T, 3) float32
    labels: Tensor  # (T,) uint8
    offsets: Tensor  # (B + 1,) int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def check(self) -> None:
        check_tensor("points", self.points, torch.float32, (None, 3))
        check_finite("points", self.points)
        check_tensor("labels", self.labels, torch.uint8, (len(self.points),))
        check_range("labels", self.labels, len(self.class_names))
        check_tensor("offsets", self.offsets, torch.int64, (None,))
        offsets = self.offsets.tolist()
        if offsets[:1] != [0] or offsets[-1] != len(self.points) or offsets != sorted(offsets):
            raise DataError(f"offsets: expected to rise from 0 to {len(self.points)}")


@dataclass(frozen=True, kw_only=True)
class FaceSets(Split):
    """Sets of ten faces: nine that have both attributes of a pair, and one that has neither.

    The faces of set b are `images[members[b]]`; `class_names` names the attributes.
    """

    task: ClassVar[Task] = "anomaly-detection"
    images: Tensor  # (I, 3, 49, 40) uint8, every image once
    members: Tensor  # (B, 10) int64
    labels: Tensor  # (B,) int64, the place of the odd one out
    attributes: Tensor  # (B, 2) int64, the pair

    def __len__(self) -> int:
        return len(self.labels)

    def published_size(self) -> int:
        return len(self.images)

    def check(self) -> None:
        check_tensor("images", self.images, torch.uint8, (None, 3, 49, 40))
        check_tensor("labels", self.labels, torch.int64, (None,))
        check_tensor("members", self.members, torch.int64, (len(self), 10))
        check_tensor("attributes", self.attributes, torch.int64, (len(self), 2))
        check_range("labels", self.labels, 10)
        check_range("members", self.members, len(self.images))
        check_range("attributes", self.attributes, len(self.class_names))
        if len(self.members.unique()) != self.members.numel():
            raise DataError("members: an image appears more than once")
