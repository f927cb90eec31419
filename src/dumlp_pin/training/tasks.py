"""What a run trains on and how it is scored, for each kind of data.

A task keeps its data on the device as whole tensors and cuts batches by index there, so that no
step waits for the host. Data that would fill the device stays in the host's memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dumlp_pin import data
from dumlp_pin.data.augment import LabelsT
from dumlp_pin.data.columns import IGNORED, covering_columns, random_column
from dumlp_pin.data.records import FaceSets, Images, PartShapes, Scenes, Shapes, Split
from dumlp_pin.training.metrics import (
    AnomalyMetrics,
    ClassificationMetrics,
    PartMetrics,
    SceneMetrics,
)
from dumlp_pin.training.recipe import Recipe

Part = Literal["train", "test"]
Scene = tuple[Tensor, Tensor]  # points (N, 3) and their labels (N,)
HOLDOUT_SEED = 0  # the held-out sets are the same in every run, whatever its seed
LARGEST_SCORING_BATCH = 256
SCORED_ELEMENTS = 2**18  # in one batch, at most
COLUMNS_SEED = 0  # and so are the points that are drawn from scenes to be scored


@dataclass
class Batch:
    inputs: dict[str, Tensor]  # the model's keyword arguments
    target: Tensor


class Task:
    """Sets to train on and sets to score.

    `arrays` has one table a part: "x" (B, ...) and "target" (B, ...), and what else the kind needs.
    They are on the device, or in the host's memory if they would not fit.
    """

    headline: str  # the metric that the paper reports; more is better
    # Whether batches of training sets are cut without a look at any value, as a CUDA graph needs.
    capturable = True

    def __init__(
        self, arrays: Mapping[Part, dict[str, Tensor]], recipe: Recipe, class_names: Sequence[str]
    ) -> None:
        self.arrays, self.recipe, self.class_names = arrays, recipe, tuple(class_names)

    def size(self, part: Part) -> int:
        return len(self.arrays[part]["target"])

    def rows(self, part: Part, index: Tensor) -> dict[str, Tensor]:
        """What is stored of the sets `index` of a part, an index where the arrays are."""
        return {name: values[index] for name, values in self.arrays[part].items()}

    def prepare(self, part: Part, rows: dict[str, Tensor]) -> Batch:
        """What a model takes, of rows on any device; those of training are augmented."""
        raise NotImplementedError

    def batch(self, part: Part, index: Tensor) -> Batch:
        """The sets `index` of a part, on the device where the index is."""
        rows = self.rows(part, index.to(self.storage))
        return self.prepare(part, {name: v.to(index.device) for name, v in rows.items()})

    def scoring_batch(self) -> int:
        """How many sets are scored at once: fewer where they are large, for memory's sake."""
        one = torch.zeros(1, dtype=torch.int64, device=self.storage)
        elements = self.batch("test", one).inputs["x"].shape[1]
        return min(LARGEST_SCORING_BATCH, max(1, SCORED_ELEMENTS // elements))

    @property
    def storage(self) -> torch.device:
        return self.arrays["test"]["target"].device

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError

    def new_metrics(self, device: torch.device) -> Any:
        raise NotImplementedError

    def score(self, metrics: Any, output: Tensor, batch: Batch) -> None:
        metrics.update(output, batch.target)

    def _augmented(self, part: Part, x: Tensor, labels: LabelsT) -> tuple[Tensor, LabelsT]:
        return self.recipe.augmentation(x, labels) if part == "train" else (x, labels)

    def _cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        # The paper's smoothing is shared by the other classes, PyTorch's by all of them.
        classes = logits.shape[1]
        smoothing = self.recipe.label_smoothing * classes / (classes - 1)
        if smoothing > 1:
            raise ValueError(
                f"{classes} classes allow less than the label_smoothing of this recipe"
            )
        return F.cross_entropy(logits.float(), target, label_smoothing=smoothing)


class SetClassification(Task):
    headline = "overall_accuracy"

    def prepare(self, part: Part, rows: dict[str, Tensor]) -> Batch:
        x = data.pixel_set(rows["x"]) if rows["x"].dtype == torch.uint8 else rows["x"]
        return Batch({"x": self._augmented(part, x, None)[0]}, rows["target"])

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self._cross_entropy(output, target)

    def new_metrics(self, device: torch.device) -> ClassificationMetrics:
        return ClassificationMetrics(len(self.class_names), device)


class PartSegmentation(Task):
    headline = "instance_miou"

    def __init__(
        self,
        arrays: Mapping[Part, dict[str, Tensor]],
        recipe: Recipe,
        class_names: Sequence[str],
        parts_of_category: list[list[int]],
    ) -> None:
        super().__init__(arrays, recipe, class_names)
        self.parts_of_category = parts_of_category

    def prepare(self, part: Part, rows: dict[str, Tensor]) -> Batch:
        x, parts = self._augmented(part, rows["x"], rows["target"].long())
        return Batch({"x": x, "category": rows["category"]}, parts)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self._cross_entropy(output.flatten(0, 1), target.flatten())

    def new_metrics(self, device: torch.device) -> PartMetrics:
        return PartMetrics(self.parts_of_category, device)

    def score(self, metrics: PartMetrics, output: Tensor, batch: Batch) -> None:
        metrics.update(output, batch.target, batch.inputs["category"])


class SetAnomaly(Task):
    headline = "accuracy"

    def rows(self, part: Part, index: Tensor) -> dict[str, Tensor]:
        arrays = self.arrays[part]
        images = arrays["images"][arrays["x"][index]]  # (B, 10, 3, 49, 40) uint8
        return {"images": images, "target": arrays["target"][index]}

    def prepare(self, part: Part, rows: dict[str, Tensor]) -> Batch:
        return Batch({"x": rows["images"].float() / 127.5 - 1}, rows["target"])

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self._cross_entropy(output, target)

    def new_metrics(self, device: torch.device) -> AnomalyMetrics:
        return AnomalyMetrics(device)


class SceneSegmentation(Task):
    """Trains on a column around a random point of each scene, scores the columns that cover it."""

    headline = "voxel_accuracy"
    capturable = False

    def __init__(
        self,
        scenes: Sequence[Scene],
        columns: dict[str, Tensor],
        recipe: Recipe,
        class_names: Sequence[str],
        points: int,
    ) -> None:
        super().__init__({"train": {}, "test": columns}, recipe, class_names)
        self.scenes, self.points = scenes, points

    def size(self, part: Part) -> int:
        return len(self.scenes) if part == "train" else super().size(part)

    def rows(self, part: Part, index: Tensor) -> dict[str, Tensor]:
        if part == "test":
            return super().rows(part, index)
        x = torch.empty(len(index), self.points, 3, device=self.storage)
        target = torch.empty(len(index), self.points, dtype=torch.long, device=self.storage)
        for row, scene in enumerate(index.tolist()):
            points, labels = self.scenes[int(scene)]
            x[row], target[row] = random_column(points, labels, self.points)
        return {"x": x, "target": target}

    def prepare(self, part: Part, rows: dict[str, Tensor]) -> Batch:
        x, target = self._augmented(part, rows["x"], rows["target"].long())
        return Batch({"x": x}, target)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self._cross_entropy(output.flatten(0, 1), target.flatten())

    def new_metrics(self, device: torch.device) -> SceneMetrics:
        return SceneMetrics(len(self.class_names), device=device)

    def score(self, metrics: SceneMetrics, output: Tensor, batch: Batch) -> None:
        counts = batch.target != IGNORED
        metrics.update(output, batch.target.where(counts, 0), batch.inputs["x"], counts)


def load_task(recipe: Recipe, device: torch.device) -> Task:
    """Read the data of a recipe and put it on the device, or where a copy to it is quick."""
    splits: dict[Part, list[Split]] = {
        "train": [data.load(recipe.data.name, split) for split in recipe.data.train],
        "test": [data.load(recipe.data.name, recipe.data.test)],
    }
    if isinstance(splits["train"][0], Scenes):
        return _load_scenes(splits, recipe, device)
    tables: dict[Part, dict[str, Tensor]] = {}
    for part in ("train", "test"):
        each = [_table(split, recipe) for split in splits[part]]
        tables[part] = {key: torch.cat([table[key] for table in each]) for key in each[0]}
    if recipe.data.holdout:
        table = tables["train"]
        index = _hold_out(len(table["target"]), recipe.data.holdout)
        tables = {part: {key: table[key][index[part]] for key in table} for part in index}
    arrays = _placed(tables, device)
    first = splits["train"][0]
    if isinstance(first, PartShapes):
        return PartSegmentation(arrays, recipe, first.class_names, first.parts_of_category)
    kind = SetAnomaly if isinstance(first, FaceSets) else SetClassification
    return kind(arrays, recipe, first.class_names)


def _placed(
    tables: Mapping[Part, dict[str, Tensor]], device: torch.device
) -> dict[Part, dict[str, Tensor]]:
    size = sum(values.nbytes for table in tables.values() for values in table.values())
    where = device if size <= room_on(device) else torch.device("cpu")
    return {
        part: {name: v.to(where) for name, v in table.items()} for part, table in tables.items()
    }


def room_on(device: torch.device) -> float:
    """Bytes of data that a device may hold: half of what is free, the other half is for work."""
    return torch.cuda.mem_get_info(device)[0] / 2 if device.type == "cuda" else math.inf


def _table(split: Split, recipe: Recipe) -> dict[str, Tensor]:
    for name in ("points", "features"):
        if isinstance(split, Images | FaceSets) and getattr(recipe.data, name) is not None:
            raise ValueError(f"data.{name} is of points, and {split.name} has images: leave it out")
    if isinstance(split, Images):
        return {"x": split.images, "target": split.labels}
    if isinstance(split, FaceSets):
        if recipe.data.holdout or len(recipe.data.train) > 1:
            raise ValueError(f"{split.name} has a validation split of its own: test = 'val'")
        return {"x": split.members, "target": split.labels, "images": split.images}
    assert isinstance(split, Shapes)
    points = split.points[:, : recipe.data.points, : recipe.data.features]
    if isinstance(split, PartShapes):
        parts = split.parts[:, : recipe.data.points]
        return {"x": points, "target": parts, "category": split.labels}
    return {"x": points, "target": split.labels}


def _load_scenes(
    splits: Mapping[Part, Sequence[Split]], recipe: Recipe, device: torch.device
) -> SceneSegmentation:
    count = recipe.data.points
    if count is None:
        raise ValueError("data.points must say how many points are drawn from a column of a scene")
    scenes = {part: _each_scene(splits[part]) for part in splits}
    if recipe.data.holdout:
        index = _hold_out(len(scenes["train"]), recipe.data.holdout)
        scenes = {part: [scenes["train"][int(i)] for i in index[part].tolist()] for part in index}
    generator = torch.Generator().manual_seed(COLUMNS_SEED)
    columns = [
        covering_columns(points, labels, count, generator) for points, labels in scenes["test"]
    ]
    table = {
        "x": torch.cat([x for x, _ in columns]).to(device),
        "target": torch.cat([target.to(torch.int8) for _, target in columns]).to(device),
    }
    train = [(points.to(device), labels.to(device)) for points, labels in scenes["train"]]
    return SceneSegmentation(train, table, recipe, splits["train"][0].class_names, count)


def _each_scene(splits: Sequence[Split]) -> list[Scene]:
    scenes: list[Scene] = []
    for split in splits:
        assert isinstance(split, Scenes)
        sizes = split.offsets.diff().tolist()
        scenes += zip(split.points.split(sizes), split.labels.split(sizes), strict=True)
    return [scene for scene in scenes if len(scene[0])]


def _hold_out(count: int, part: float) -> dict[Part, Tensor]:
    """The indices of the training sets in two; the test part is what is held out."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(HOLDOUT_SEED))
    held = round(count * part)
    if not 0 < held < count:
        raise ValueError(f"data.holdout = {part} of {count} sets leaves nothing on one side")
    return {"train": order[held:], "test": order[:held]}
