"""What a run trains on and how it is scored, for each kind of data.

A task keeps its data on the device as whole tensors and cuts batches by index there, so that no
step waits for the host.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from dumlp_pin import data
from dumlp_pin.data.augment import LabelsT
from dumlp_pin.data.records import FaceSets, Images, PartShapes, Shapes, Split
from dumlp_pin.training.metrics import AnomalyMetrics, ClassificationMetrics, PartMetrics
from dumlp_pin.training.recipe import Recipe

Part = Literal["train", "test"]
HOLDOUT_SEED = 0  # the held-out sets are the same in every run, whatever its seed


@dataclass
class Batch:
    inputs: dict[str, Tensor]  # the model's keyword arguments
    target: Tensor


class Task:
    """Sets to train on and sets to score, on one device.

    `arrays` has one table a part: "x" (B, ...) and "target" (B, ...), and what else the kind needs.
    """

    headline: str  # the metric that the paper reports; more is better

    def __init__(self, arrays: Mapping[Part, dict[str, Tensor]], recipe: Recipe) -> None:
        self.arrays, self.recipe = arrays, recipe

    def size(self, part: Part) -> int:
        return len(self.arrays[part]["target"])

    def batch(self, part: Part, index: Tensor) -> Batch:
        """The sets `index` of a part; those of training are augmented."""
        raise NotImplementedError

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
        return F.cross_entropy(logits.float(), target, label_smoothing=smoothing)


class SetClassification(Task):
    headline = "overall_accuracy"

    def __init__(
        self, arrays: Mapping[Part, dict[str, Tensor]], recipe: Recipe, num_classes: int
    ) -> None:
        super().__init__(arrays, recipe)
        self.num_classes = num_classes

    def batch(self, part: Part, index: Tensor) -> Batch:
        x, target = (self.arrays[part][key][index] for key in ("x", "target"))
        if x.dtype == torch.uint8:
            x = data.pixel_set(x)
        return Batch({"x": self._augmented(part, x, None)[0]}, target)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self._cross_entropy(output, target)

    def new_metrics(self, device: torch.device) -> ClassificationMetrics:
        return ClassificationMetrics(self.num_classes, device)


class PartSegmentation(Task):
    headline = "instance_miou"

    def __init__(
        self,
        arrays: Mapping[Part, dict[str, Tensor]],
        recipe: Recipe,
        parts_of_category: list[list[int]],
    ) -> None:
        super().__init__(arrays, recipe)
        self.parts_of_category = parts_of_category

    def batch(self, part: Part, index: Tensor) -> Batch:
        arrays = self.arrays[part]
        x, parts = self._augmented(part, arrays["x"][index], arrays["target"][index].long())
        return Batch({"x": x, "category": arrays["category"][index]}, parts)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self._cross_entropy(output.flatten(0, 1), target.flatten())

    def new_metrics(self, device: torch.device) -> PartMetrics:
        return PartMetrics(self.parts_of_category, device)

    def score(self, metrics: PartMetrics, output: Tensor, batch: Batch) -> None:
        metrics.update(output, batch.target, batch.inputs["category"])


class SetAnomaly(Task):
    headline = "accuracy"

    def batch(self, part: Part, index: Tensor) -> Batch:
        arrays = self.arrays[part]
        images = arrays["images"][arrays["x"][index]]  # (B, 10, 3, 49, 40) uint8
        x = images.float() / 127.5 - 1
        return Batch({"x": x}, arrays["target"][index])

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self._cross_entropy(output, target)

    def new_metrics(self, device: torch.device) -> AnomalyMetrics:
        return AnomalyMetrics(device)


def load_task(recipe: Recipe, device: torch.device) -> Task:
    """Read the data of a recipe and put it on the device."""
    splits = {
        "train": [data.load(recipe.data.name, split) for split in recipe.data.train],
        "test": [data.load(recipe.data.name, recipe.data.test)],
    }
    tables: dict[Part, dict[str, Tensor]] = {}
    for part in ("train", "test"):
        each = [_table(split, recipe) for split in splits[part]]
        tables[part] = {key: torch.cat([table[key] for table in each]) for key in each[0]}
    if recipe.data.holdout:
        tables = _hold_out(tables["train"], recipe.data.holdout)
    arrays: dict[Part, dict[str, Tensor]] = {
        part: {key: value.to(device) for key, value in table.items()}
        for part, table in tables.items()
    }
    first = splits["train"][0]
    if isinstance(first, PartShapes):
        bounds = first.part_offsets.tolist()
        parts = [list(range(a, b)) for a, b in itertools.pairwise(bounds)]
        return PartSegmentation(arrays, recipe, parts)
    if isinstance(first, FaceSets):
        return SetAnomaly(arrays, recipe)
    return SetClassification(arrays, recipe, len(first.class_names))


def _table(split: Split, recipe: Recipe) -> dict[str, Tensor]:
    if isinstance(split, Images):
        return {"x": split.images, "target": split.labels}
    if isinstance(split, FaceSets):
        if recipe.data.holdout or len(recipe.data.train) > 1:
            raise ValueError(f"{split.name} has a validation split of its own: test = 'val'")
        return {"x": split.members, "target": split.labels, "images": split.images}
    if not isinstance(split, Shapes):
        raise ValueError(f"no recipe trains on {split.name} yet")
    points = split.points[:, : recipe.data.points]
    if isinstance(split, PartShapes):
        parts = split.parts[:, : recipe.data.points]
        return {"x": points, "target": parts, "category": split.labels}
    return {"x": points, "target": split.labels}


def _hold_out(train: dict[str, Tensor], part: float) -> dict[Part, dict[str, Tensor]]:
    """The training sets in two; what is held out is scored in the place of the test sets."""
    count = len(train["target"])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(HOLDOUT_SEED))
    held = round(count * part)
    if not 0 < held < count:
        raise ValueError(f"data.holdout = {part} of {count} sets leaves nothing on one side")
    return {
        "train": {key: value[order[held:]] for key, value in train.items()},
        "test": {key: value[order[:held]] for key, value in train.items()},
    }
