"""Pictures of what a trained model does with its test sets: `dumlp-pin figure NAME MODEL`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dumlp_pin import data
from dumlp_pin.data.records import FaceSets, PartShapes
from dumlp_pin.figures.anomalies import draw_anomalies
from dumlp_pin.figures.attention import attention_of, draw_attention
from dumlp_pin.figures.parts import draw_parts
from dumlp_pin.figures.retrieval import draw_retrieval, nearest_sets
from dumlp_pin.figures.tsne import draw_tsne
from dumlp_pin.pretrained import Pretrained
from dumlp_pin.training.tasks import Batch, load_task

FEWEST_IN_A_PLANE = 31  # t-SNE looks at the thirty nearest of each
CHOICE_SEED = 0  # which sets are shown is chance, and the same every time


@dataclass(frozen=True)
class Trained:
    """A trained model beside the sets that its recipe scores."""

    found: Pretrained
    device: torch.device

    @cached_property
    def model(self) -> Any:
        return self.found.model().to(self.device)

    @cached_property
    def task(self) -> Any:
        return load_task(self.found.recipe, self.device)

    @property
    def image_rows(self) -> int | None:
        """How many rows the images have whose pixels the sets are; None for points."""
        images = self.task.arrays["test"]["x"]
        return images.shape[1] if images.dtype == torch.uint8 else None

    def must_be(self, *tasks: str) -> None:
        if self.found.task not in tasks:
            raise ValueError(
                f"this picture is of {' or '.join(tasks)}, "
                f"and {self.found.recipe.model.name} is for {self.found.task}"
            )

    def shuffled(self) -> Tensor:
        chance = torch.Generator().manual_seed(CHOICE_SEED)
        return torch.randperm(self.task.size("test"), generator=chance)

    def batch(self, index: Tensor) -> Batch:
        return self.task.batch("test", index.to(self.device))

    def each(self, index: Tensor, function: Callable[[Batch], Tensor]) -> Tensor:
        """What a function says of the sets `index`, batch after batch."""
        with torch.inference_mode():
            parts = index.split(self.task.scoring_batch())
            return torch.cat([function(self.batch(part)).cpu() for part in parts])


def picture_tsne(trained: Trained, out: Path, sets: int) -> None:
    """Features of so many test sets in the plane."""
    trained.must_be("classification")
    if sets < FEWEST_IN_A_PLANE:
        raise ValueError(f"--sets is {sets}, expected at least {FEWEST_IN_A_PLANE} for a picture")
    index = trained.shuffled()[:sets]
    features = trained.each(index, lambda batch: trained.model.forward_features(**batch.inputs))
    labels = trained.each(index, lambda batch: batch.target)
    draw_tsne(out, features, labels, trained.found.class_names)


def picture_retrieval(trained: Trained, out: Path, queries: int) -> float:
    """The nearest test sets by the features before the last layer, as PointNet has it.

    Returns the share of those found that are of the query's class, with all test sets as queries.
    """
    trained.must_be("classification")
    if queries < 1:
        raise ValueError(f"--queries is {queries}, expected at least 1")
    every = torch.arange(trained.task.size("test"))
    last = [layer for layer in trained.model.head.modules() if isinstance(layer, nn.Linear)][-1]
    features = trained.each(every, lambda batch: _input_of(last, trained.model, batch))
    labels = trained.each(every, lambda batch: batch.target)
    found = nearest_sets(features, every)
    shown = _one_a_class(trained.shuffled(), labels)[:queries]
    places = torch.cat((shown[:, None], found[shown]), 1)
    sets = [list(trained.batch(row).inputs["x"].cpu()) for row in places]
    names = trained.found.class_names
    draw_retrieval(out, sets, labels[places], names, trained.image_rows)
    return float((labels[found] == labels[:, None]).double().mean())


def picture_parts(trained: Trained, out: Path) -> None:
    """One shape of each category, the true parts and the predicted ones."""
    trained.must_be("part-segmentation")
    record = data.load(trained.found.recipe.data.name, trained.found.recipe.data.test)
    assert isinstance(record, PartShapes)
    categories = trained.task.arrays["test"]["category"].cpu()
    index = _one_a_class(trained.shuffled(), categories)
    shapes, true, predicted, titles = [], [], [], []
    with torch.inference_mode():
        for place in index[categories[index].argsort()]:
            batch = trained.batch(place[None])
            category = int(batch.inputs["category"])
            parts = torch.tensor(record.parts_of_category[category])
            answer = trained.model(**batch.inputs)[0].argmax(1).cpu()
            shapes.append(batch.inputs["x"][0].cpu())
            true.append(_numbered(batch.target[0].cpu().long(), parts))
            predicted.append(_numbered(answer, parts))
            metrics = trained.task.new_metrics(torch.device("cpu"))
            logits = torch.nn.functional.one_hot(answer, int(record.part_offsets[-1]))
            metrics.update(logits[None].float(), batch.target.cpu(), batch.inputs["category"].cpu())
            share = metrics.compute()["instance_miou"]
            titles.append(f"{record.class_names[category].lower()}, IoU {100 * share:.0f} %")
    draw_parts(out, shapes, true, predicted, titles)


def picture_anomalies(trained: Trained, out: Path, sets: int) -> None:
    """Test sets of faces with the chance of each to be the odd one out."""
    trained.must_be("anomaly-detection")
    if sets < 1:
        raise ValueError(f"--sets is {sets}, expected at least 1")
    record = data.load(trained.found.recipe.data.name, trained.found.recipe.data.test)
    assert isinstance(record, FaceSets)
    index = trained.shuffled()[:sets]
    chances = trained.each(index, lambda batch: trained.model(**batch.inputs).float().softmax(1))
    pairs = [
        " and ".join(record.class_names[attribute].lower().replace("_", " ") for attribute in pair)
        + "; the odd one has neither"
        for pair in record.attributes[index].tolist()
    ]
    draw_anomalies(out, record.images[record.members[index]], record.labels[index], chances, pairs)


def picture_attention(trained: Trained, out: Path, index: int) -> None:
    """The weights of one test set's elements in each column of the set softmax."""
    trained.must_be("classification", "part-segmentation", "semantic-segmentation")
    count = trained.task.size("test")
    if not 0 <= index < count:
        raise ValueError(f"there are {count} test sets, 0 to {count - 1}; got --index {index}")
    batch = trained.batch(torch.tensor([index]))
    weights = attention_of(trained.model, batch.inputs)[0].cpu()
    draw_attention(out, batch.inputs["x"][0].cpu(), weights, trained.image_rows)


def _input_of(layer: nn.Module, model: nn.Module, batch: Batch) -> Tensor:
    """What a layer is given when the model answers."""
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    try:
        model(**batch.inputs)
    finally:
        hook.remove()
    return seen[0]


def _one_a_class(order: Tensor, labels: Tensor) -> Tensor:
    """The first of each class in that order.

    >>> _one_a_class(torch.tensor([2, 0, 1, 3]), torch.tensor([7, 7, 5, 5]))
    tensor([2, 0])
    """
    first: dict[int, int] = {}
    for place in order.tolist():
        first.setdefault(int(labels[place]), place)
    return torch.tensor(list(first.values()))


def _numbered(labels: Tensor, parts: Tensor) -> Tensor:
    """Labels by their place among `parts`, -1 for others.

    >>> _numbered(torch.tensor([4, 5, 9]), torch.tensor([4, 5]))
    tensor([ 0,  1, -1])
    """
    inside = (labels >= parts[0]) & (labels <= parts[-1])
    return torch.where(inside, labels - parts[0], -1)
