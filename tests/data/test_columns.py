from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dumlp_pin.data.columns import BORDER, IGNORED, MARGIN, WIDTH, covering_columns, random_column

LABELS = 20


def room(extent: tuple[float, ...] = (4.0, 3.2, 2.5), points: int = 20_000) -> Tensor:
    """A block of points that starts far from the origin."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(points, 3, generator=generator) * torch.tensor(extent) + 7


def label(points: Tensor) -> Tensor:
    """A label that a point keeps wherever it goes: its height in 19 layers, from 1 up."""
    height = points[:, 2] - points[:, 2].min()
    return (height / height.max() * (LABELS - 2)).round().to(torch.uint8) + 1


def test_a_random_column_has_its_width_and_the_scenes_height() -> None:
    torch.manual_seed(0)
    scene = room()
    points, labels = random_column(scene, label(scene), 4096)
    assert points.shape == (4096, 3)
    assert labels.dtype == torch.int64
    distance = points[:, :2].abs().amax(1)
    assert distance.max() <= WIDTH / 2 + MARGIN
    assert ((labels == IGNORED) == (distance > WIDTH / 2 + BORDER)).all()
    assert points[:, 2].min() >= 0  # from the floor, not from the column's lowest point
    assert points[:, 2].max() > 2.4
    counts = labels != IGNORED
    layers = (points[counts, 2] / (scene[:, 2].max() - scene[:, 2].min()) * (LABELS - 2)).round()
    assert torch.equal(layers.long() + 1, labels[counts])  # labels came along with their points


def test_columns_to_train_on_are_annotated_where_there_is_a_choice() -> None:
    torch.manual_seed(0)
    scene = room((12.0, 1.5, 2.5), points=40_000)
    labels = (scene[:, 0] > 11).to(torch.uint8)  # nine tenths have no annotation
    annotated = [
        (seen == 1).float().mean().item() > 0.3
        for _, seen in (random_column(scene, labels, 512) for _ in range(40))
    ]
    # Ten random points find the annotated end in most cases, one would in a tenth.
    assert sum(annotated) > 15


def test_nearly_empty_columns_are_avoided() -> None:
    torch.manual_seed(0)
    dense, wall = room((1.5, 1.5, 2.5)), room((1.5, 0.001, 2.5), points=2_000)
    wall[:, 0] += 20
    scene = torch.cat((dense, wall))
    heights = torch.ones(len(scene), dtype=torch.uint8)
    widths = [random_column(scene, heights, 256)[0][:, 1].std().item() for _ in range(40)]
    assert min(widths) > 0.1


def test_the_last_attempt_is_taken_as_it_is() -> None:
    torch.manual_seed(0)
    points, labels = random_column(torch.rand(5, 3), torch.zeros(5, dtype=torch.uint8), 16)
    assert points.shape == (16, 3)
    assert set(labels.tolist()) <= {0, IGNORED}


def test_covering_columns_hold_every_point_once() -> None:
    """With enough draws every point is seen; where it counts is one column, but for the borders."""
    scene = room((2.9, 1.4, 2.0), points=60)
    points, labels = covering_columns(scene, label(scene), 5000, torch.Generator().manual_seed(0))
    assert points.shape == (2, 5000, 3)
    assert labels.shape == (2, 5000)
    least = scene.amin(0)
    found: list[tuple[float, ...]] = []
    for column, (x, target) in enumerate(zip(points, labels, strict=True)):
        middle = least + WIDTH * torch.tensor([column + 0.5, 0.5, 0])
        back = (x + middle)[target != IGNORED]
        found += [tuple(point.tolist()) for point in (back * 1000).round().unique(dim=0)]
    expected = {tuple(point.tolist()) for point in (scene * 1000).round()}
    assert len(found) == len(set(found)) == len(scene)
    # Coordinates went to the column and back: compare them to the millimetre.
    for point in found:
        assert min(abs(torch.tensor(point) - torch.tensor(other)).max() for other in expected) <= 1


def test_covering_columns_are_the_same_for_the_same_seed() -> None:
    scene = room()
    first, again, other = (
        covering_columns(scene, label(scene), 64, torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])
    assert len(first[0]) == 3 * 3


def test_columns_without_points_are_left_out() -> None:
    corners = torch.tensor([[0.0, 0, 0], [9.5, 9.5, 2]]).repeat_interleave(20, 0)
    corners += 0.01 * torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
    points, labels = covering_columns(corners, torch.ones(40, dtype=torch.uint8), 8)
    assert len(points) == len(labels) == 2


@pytest.mark.parametrize("points", [torch.zeros(3, 3), torch.tensor([[1.0, 2, 3]])])
def test_a_scene_without_extent_is_one_column(points: Tensor) -> None:
    x, target = covering_columns(points, torch.ones(len(points), dtype=torch.uint8), 8)
    assert x.shape == (1, 8, 3)
    assert (target == 1).all()
    assert random_column(points, torch.ones(len(points), dtype=torch.uint8), 8)[0].shape == (8, 3)
