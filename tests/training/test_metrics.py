from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix
from torch import Tensor

from dumlp_pin.data.shapenetpart import PART_OFFSETS
from dumlp_pin.training.metrics import (
    AnomalyMetrics,
    ClassificationMetrics,
    PartMetrics,
    SceneMetrics,
    first_in_voxel,
)

PARTS = [list(range(*bounds)) for bounds in itertools.pairwise(PART_OFFSETS.tolist())]
CLASSES = 21
jaccard_score: Any = sklearn_metrics.jaccard_score  # its types know no `average=None`


class Case(NamedTuple):
    """A metric, and batches for it: one tensor an argument of `update`, sets first."""

    make: Callable[..., Any]
    draw: Callable[[int, torch.Generator], tuple[Tensor, ...]]


def classification(B: int, g: torch.Generator) -> tuple[Tensor, ...]:
    return torch.randn(B, 40, generator=g), torch.randint(40, (B,), generator=g)


def shapes(B: int, g: torch.Generator) -> tuple[Tensor, ...]:
    """Predictions that are often right, sometimes of another part, sometimes of a foreign one."""
    category = torch.randint(16, (B,), generator=g)
    first, past = PART_OFFSETS[category], PART_OFFSETS[category + 1]
    chance = torch.rand(B, 30, generator=g)
    parts = (first[:, None] + chance * (past - first)[:, None]).long().to(torch.uint8)
    right = torch.nn.functional.one_hot(parts.long(), 50)
    return torch.randn(B, 30, 50, generator=g) + 2 * right, parts, category


def scenes(B: int, g: torch.Generator) -> tuple[Tensor, ...]:
    """Eight points a voxel, 2 cm wide; a fifth of them masked."""
    target = torch.randint(CLASSES, (B, 60), generator=g).to(torch.uint8)
    right = torch.nn.functional.one_hot(target.long(), CLASSES)
    logits = torch.randn(B, 60, CLASSES, generator=g) + 2 * right
    points = 0.04 * torch.rand(B, 60, 3, generator=g)
    return logits, target, points, torch.rand(B, 60, generator=g) < 0.8


def anomalies(B: int, g: torch.Generator) -> tuple[Tensor, ...]:
    return torch.randn(B, 10, generator=g), torch.randint(10, (B,), generator=g)


CASES = {
    "classification": Case(lambda **on: ClassificationMetrics(40, **on), classification),
    "parts": Case(lambda **on: PartMetrics(PARTS, **on), shapes),
    "scenes": Case(lambda **on: SceneMetrics(CLASSES, **on), scenes),
    "anomalies": Case(AnomalyMetrics, anomalies),
}
every_metric = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def measured(case: Case, batches: Sequence[Sequence[Tensor]]) -> dict[str, float]:
    metric = case.make()
    for batch in batches:
        metric.update(*batch)
    return metric.compute()


class TestEveryMetric:
    @every_metric
    @settings(max_examples=10, deadline=None)
    @given(sizes=st.lists(st.integers(0, 9), min_size=1), seed=st.integers(0, 99))
    def test_batches_and_order_do_not_matter(self, case: Case, sizes: list[int], seed: int) -> None:
        sizes = [*sizes, 3]  # so that there is something to measure
        sets = case.draw(sum(sizes), generator(seed))
        together = measured(case, [sets])
        split = list(zip(*(tensor.split(sizes) for tensor in sets), strict=True))
        assert measured(case, split) == pytest.approx(together, abs=1e-12, nan_ok=True)
        order = torch.randperm(sum(sizes), generator=generator(seed))
        shuffled = measured(case, [[tensor[order] for tensor in sets]])
        assert shuffled == pytest.approx(together, abs=1e-12, nan_ok=True)

    @every_metric
    def test_update_waits_for_nothing(self, case: Case) -> None:
        """A compiled graph cannot look at a value."""
        torch._dynamo.reset()
        sets, metric = case.draw(7, generator()), case.make()
        torch.compile(metric.update, fullgraph=True, backend="aot_eager")(*sets)
        assert metric.compute() == pytest.approx(measured(case, [sets]), abs=1e-12)

    @every_metric
    def test_counts_are_on_the_device_asked_for(self, case: Case) -> None:
        metric = case.make(device="meta")
        tensors = [value for value in vars(metric).values() if isinstance(value, Tensor)]
        assert tensors
        assert all(tensor.device.type == "meta" for tensor in tensors)

    @every_metric
    def test_of_nothing(self, case: Case) -> None:
        metric = case.make()
        with pytest.raises(ValueError, match="nothing was counted yet"):
            metric.compute()
        metric.update(*case.draw(0, generator()))
        with pytest.raises(ValueError, match="nothing was counted yet"):
            metric.compute()

    @every_metric
    def test_perfect(self, case: Case) -> None:
        logits, target, *others = case.draw(200, generator())
        logits = torch.nn.functional.one_hot(target.long(), logits.shape[-1]).float()
        assert set(measured(case, [[logits, target, *others]]).values()) == {1.0}

    @every_metric
    def test_wants_shapes_that_fit(self, case: Case) -> None:
        logits, target, *others = case.draw(3, generator())
        for wrong in (logits[:2], logits[..., None], logits[0]):
            with pytest.raises(ValueError, match=r"targets \(B.* need logits \(B.*, got \("):
                case.make().update(wrong, target, *others)

    @every_metric
    @pytest.mark.parametrize("wrong", [-1, 99])
    def test_wants_targets_in_range(self, case: Case, wrong: int) -> None:
        logits, target, *others = case.draw(3, generator())
        target = target.long()
        target.view(-1)[1] = wrong
        with pytest.raises(ValueError, match=rf"targets are 0\.\.\d+, got {wrong}"):
            case.make().update(logits, target, *others)

    @every_metric
    def test_wants_whole_targets(self, case: Case) -> None:
        logits, target, *others = case.draw(3, generator())
        with pytest.raises(TypeError, match=r"targets are integers, got torch\.float32"):
            case.make().update(logits, target.float(), *others)


class TestClassification:
    def test_is_what_scikit_learn_computes(self) -> None:
        logits, target = classification(500, generator())
        metric = ClassificationMetrics(40)
        metric.update(logits, target)
        predicted = logits.argmax(-1)
        assert metric.compute() == pytest.approx(
            {
                "overall_accuracy": accuracy_score(target, predicted),
                "mean_class_accuracy": balanced_accuracy_score(target, predicted),
            },
            abs=1e-12,
        )
        np.testing.assert_array_equal(metric.confusion, confusion_matrix(target, predicted))
        recall = confusion_matrix(target, predicted, normalize="true").diagonal()
        np.testing.assert_allclose(metric.per_class()["accuracy"], recall, rtol=1e-12)

    def test_a_class_that_never_occurs_is_out_of_the_mean(self) -> None:
        metric = ClassificationMetrics(3)
        metric.update(torch.eye(3)[[0, 1, 0, 0]], torch.tensor([0, 0, 0, 2]))  # 1 is predicted
        accuracy = metric.per_class()["accuracy"].tolist()
        assert accuracy == [pytest.approx(2 / 3), pytest.approx(math.nan, nan_ok=True), 0]
        assert metric.compute() == pytest.approx(
            {"overall_accuracy": 1 / 2, "mean_class_accuracy": 1 / 3}
        )

    def test_counts_beyond_what_float32_can(self) -> None:
        metric = ClassificationMetrics(2)
        metric.confusion += 2**40
        metric.update(torch.eye(2), torch.tensor([0, 1]))
        assert metric.confusion.diagonal().tolist() == [2**40 + 1] * 2

    def test_wants_a_class(self) -> None:
        with pytest.raises(ValueError, match="at least one class to measure, got 0"):
            ClassificationMetrics(0)


def slow_shape_iou(logits: Tensor, parts: Tensor, category: int, among_own: bool) -> float:
    """From the definition, with sets of points."""
    candidates = PARTS[category] if among_own else range(50)
    predicted = [max(candidates, key=lambda part: row[part]) for row in logits.tolist()]
    ious = []
    for part in PARTS[category]:
        there = {point for point, of in enumerate(parts.tolist()) if of == part}
        found = {point for point, of in enumerate(predicted) if of == part}
        ious.append(len(there & found) / len(there | found) if there | found else 1.0)
    return sum(ious) / len(ious)


class TestParts:
    @pytest.mark.parametrize(("suffix", "among_own"), [("", False), ("_own_parts", True)])
    def test_is_the_definition(self, suffix: str, among_own: bool) -> None:
        logits, parts, category = shapes(60, generator())
        metric = PartMetrics(PARTS)
        metric.update(logits, parts, category)
        each = [
            slow_shape_iou(*shape, among_own)
            for shape in zip(logits, parts, category.tolist(), strict=True)
        ]
        of_category = [
            np.mean([iou for iou, of in zip(each, category, strict=True) if of == c])
            for c in range(16)
        ]
        np.testing.assert_allclose(metric.per_class()["iou" + suffix], of_category, rtol=1e-12)
        values = metric.compute()
        assert values["instance_miou" + suffix] == pytest.approx(np.mean(each), abs=1e-12)
        assert values["class_miou" + suffix] == pytest.approx(np.mean(of_category), abs=1e-12)

    def test_of_one_shape_is_scikit_learns_jaccard_score(self) -> None:
        logits, parts, _ = shapes(1, generator(3))
        part, category = 3, torch.tensor([0])
        parts = (parts % 4).to(torch.uint8)
        parts[0, 0] = part
        metric = PartMetrics(PARTS)
        metric.update(logits, parts, category)
        jaccard = jaccard_score(
            parts[0], logits[0].argmax(-1), labels=PARTS[0], average="macro", zero_division=1
        )
        assert metric.compute()["instance_miou"] == pytest.approx(jaccard, abs=1e-12)

    def test_point_accuracy(self) -> None:
        logits, parts, category = shapes(20, generator())
        metric = PartMetrics(PARTS)
        metric.update(logits, parts, category)
        expected = accuracy_score(parts.flatten(), logits.argmax(-1).flatten())
        assert metric.compute()["point_accuracy"] == pytest.approx(expected, abs=1e-12)

    def test_the_two_conventions_differ(self) -> None:
        values = measured(CASES["parts"], [shapes(20, generator())])
        assert values["instance_miou_own_parts"] > values["instance_miou"] + 0.01
        assert values["point_accuracy_own_parts"] > values["point_accuracy"] + 0.01

    def test_a_part_absent_from_both_counts_one(self) -> None:
        metric = PartMetrics([[0, 1, 2], [3]])
        metric.update(torch.eye(4)[None, [0, 0, 1]], torch.tensor([[0, 0, 0]]), torch.tensor([0]))
        # Part 0: two of three points; part 1: predicted, not there; part 2: neither.
        assert metric.compute()["instance_miou"] == pytest.approx((2 / 3 + 0 + 1) / 3)

    def test_a_foreign_part_is_a_miss(self) -> None:
        metric = PartMetrics([[0, 1], [2]])
        metric.update(torch.eye(3)[None, [0, 2]], torch.tensor([[0, 0]]), torch.tensor([0]))
        assert metric.compute()["instance_miou"] == pytest.approx((1 / 2 + 1) / 2)

    def test_a_category_that_never_occurs_is_out_of_the_mean(self) -> None:
        metric = PartMetrics([[0, 1], [2]])
        metric.update(torch.eye(3)[None, [0, 1]], torch.tensor([[0, 1]]), torch.tensor([0]))
        assert metric.per_class()["iou"].tolist() == pytest.approx([1, math.nan], nan_ok=True)
        assert metric.compute()["class_miou"] == 1

    @pytest.mark.parametrize("parts", [[], [[0], []], [[0], [2]], [[0, 1], [1]]])
    def test_wants_each_part_in_one_category(self, parts: list[list[int]]) -> None:
        with pytest.raises(
            ValueError, match=re.escape(f"of one category, and none is empty: {parts}")
        ):
            PartMetrics(parts)

    def test_wants_categories(self) -> None:
        logits, parts, category = shapes(3, generator())
        with pytest.raises(ValueError, match=r"3 shapes need as many categories"):
            PartMetrics(PARTS).update(logits, parts, category[:2])
        with pytest.raises(ValueError, match=r"categories are 0\.\.15, got 16"):
            PartMetrics(PARTS).update(logits, parts, torch.tensor([0, 16, 2]))


def pointnet2_first_in_voxel(points: Tensor, size: float) -> Tensor:
    """One cloud (N, 3) at a time, a dictionary of voxels."""
    cells = np.ceil((points.double() - points.double().amin(0)).numpy() / size)
    first: dict[tuple[float, ...], int] = {}
    for index, cell in enumerate(cells.tolist()):
        first.setdefault(tuple(cell), index)
    chosen = torch.zeros(len(points), dtype=torch.bool)
    chosen[list(first.values())] = True
    return chosen


class TestScenes:
    def drawn(self) -> tuple[Tensor, ...]:
        return scenes(30, generator())

    def test_points_are_what_scikit_learn_computes(self) -> None:
        logits, target, points, mask = self.drawn()
        metric = SceneMetrics(CLASSES)
        metric.update(logits, target, points, mask)
        annotated = mask & (target > 0)
        true, predicted = target[annotated], logits.argmax(-1)[annotated]
        assert (predicted == 0).any()  # which is an error, not left out
        values = metric.compute()
        assert values["point_accuracy"] == pytest.approx(accuracy_score(true, predicted))
        iou = jaccard_score(true, predicted, labels=list(range(1, CLASSES)), average=None)
        np.testing.assert_allclose(metric.per_class()["iou"], [math.nan, *iou], rtol=1e-12)
        assert values["mean_iou"] == pytest.approx(np.mean(iou), abs=1e-12)

    def test_voxels_are_those_of_the_definition(self) -> None:
        logits, target, points, mask = self.drawn()
        seen = correct = 0
        for logit, label, cloud, real in zip(logits, target, points, mask, strict=True):
            first = pointnet2_first_in_voxel(cloud[real], 0.02)
            true, predicted = label[real][first], logit[real][first].argmax(-1)
            seen += int((true > 0).sum())
            correct += int(((true > 0) & (true == predicted)).sum())
        assert 0 < correct < seen < int(mask.sum()) / 2
        values = measured(CASES["scenes"], [(logits, target, points, mask)])
        assert values["voxel_accuracy"] == pytest.approx(correct / seen, abs=1e-12)

    def test_what_is_masked_does_not_matter(self) -> None:
        logits, target, points, mask = self.drawn()
        expected = measured(CASES["scenes"], [(logits, target, points, mask)])
        points = points.masked_fill(~mask[..., None], -math.inf)
        logits = logits.masked_fill(~mask[..., None], math.nan)
        assert measured(CASES["scenes"], [(logits, target, points, mask)]) == expected

    def test_without_a_mask_all_points_count(self) -> None:
        logits, target, points, mask = self.drawn()
        everything = torch.ones_like(mask)
        assert measured(CASES["scenes"], [(logits, target, points)]) == measured(
            CASES["scenes"], [(logits, target, points, everything)]
        )

    def test_voxels_of_two_clouds_are_not_the_same(self) -> None:
        points = torch.zeros(3, 2, 3)
        first = first_in_voxel(points, torch.ones(3, 2, dtype=torch.bool), 0.02)
        assert first.tolist() == [[True, False]] * 3

    def test_borders_of_voxels_are_in_double_precision(self) -> None:
        points = 0.02 * torch.arange(900.0)[:, None].expand(1, 900, 3) + 5
        first = first_in_voxel(points, torch.ones(1, 900, dtype=torch.bool), 0.02)
        assert first[0].equal(pointnet2_first_in_voxel(points[0], 0.02))

    def test_a_cloud_all_masked_has_no_voxel(self) -> None:
        assert not first_in_voxel(torch.rand(2, 5, 3), torch.zeros(2, 5).bool(), 0.02).any()

    def test_a_grid_as_large_as_a_town(self) -> None:
        """No two voxels share a number, along whichever axis they are apart."""
        corners = torch.cartesian_prod(*[torch.tensor([0.0, 0.03, 1000.0, 10_000.0])] * 3)
        assert first_in_voxel(corners[None], torch.ones(1, 64, dtype=torch.bool), 0.02).all()

    def test_a_class_that_never_occurs_is_out_of_the_mean(self) -> None:
        metric = SceneMetrics(4)
        metric.update(torch.eye(4)[None, [1, 2]], torch.tensor([[1, 1]]), torch.rand(1, 2, 3))
        # Class 2 is predicted only, class 3 neither.
        expected = [math.nan, 1 / 2, 0, math.nan]
        assert metric.per_class()["iou"].tolist() == pytest.approx(expected, nan_ok=True)
        assert metric.compute()["mean_iou"] == pytest.approx(1 / 4)

    def test_of_points_without_annotation(self) -> None:
        metric = SceneMetrics(3)
        metric.update(
            torch.zeros(1, 4, 3), torch.zeros(1, 4, dtype=torch.int64), torch.rand(1, 4, 3)
        )
        with pytest.raises(ValueError, match="nothing was counted yet"):
            metric.compute()

    def test_wants_coordinates_and_a_mask_that_fit(self) -> None:
        logits, target, points, mask = scenes(3, generator())
        metric = SceneMetrics(CLASSES)
        with pytest.raises(
            ValueError, match=r"of \(3, 60\) points are \(3, 60, 3\), got \(3, 60, 2"
        ):
            metric.update(logits, target, points[..., :2], mask)
        with pytest.raises(ValueError, match=r"a mask here is bool \(3, 60\), got torch\.float32"):
            metric.update(logits, target, points, mask.float())
        with pytest.raises(ValueError, match=r"a mask here is bool \(3, 60\), got .* \(3, 59\)"):
            metric.update(logits, target, points, mask[:, 1:])

    @pytest.mark.parametrize("size", [0.0, -1.0, math.nan])
    def test_wants_a_size_of_voxels(self, size: float) -> None:
        with pytest.raises(ValueError, match=f"size of a voxel is positive, got {size}"):
            SceneMetrics(CLASSES, voxel_size=size)


class TestAnomalies:
    def test_is_what_scikit_learn_computes(self) -> None:
        logits, target = anomalies(300, generator())
        expected = accuracy_score(target, logits.argmax(-1))
        assert measured(CASES["anomalies"], [(logits, target)]) == {
            "accuracy": pytest.approx(expected, abs=1e-12)
        }

    def test_padding_is_never_the_odd_one_out(self) -> None:
        logits = torch.tensor([[-5.0, -4.0, -math.inf]])
        assert measured(CASES["anomalies"], [(logits, torch.tensor([1]))]) == {"accuracy": 1.0}
