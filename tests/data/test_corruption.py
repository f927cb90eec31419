"""Corruptions do what their level says, to every set, and nothing else."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator

from dumlp_pin.data.corruption import (
    corruptions,
    dropped,
    duplicated,
    fewer,
    jittered,
    outliers,
    rotated,
    rotated_any_way,
)

B, N = 5, 64


@pytest.fixture
def chance() -> Generator:
    return Generator().manual_seed(1)


@pytest.fixture
def x() -> torch.Tensor:
    """Points with unit normals; the first coordinate tells them apart."""
    points = torch.rand(B, N, 6, generator=Generator().manual_seed(0))
    points[..., 3:] = torch.nn.functional.normalize(points[..., 3:], dim=-1)
    return points


def labels_of(x: torch.Tensor) -> torch.Tensor:
    return (1000 * x[..., 0]).long()


def rows(x: torch.Tensor) -> list[set[tuple[float, ...]]]:
    return [{tuple(row) for row in each.tolist()} for each in x]


def test_fewer_are_some_of_the_set_in_an_order_of_its_own(
    x: torch.Tensor, chance: Generator
) -> None:
    few, labels = fewer(x, labels_of(x), chance, 16)
    assert few.shape == (B, 16, 6)
    assert all(len(a) == 16 and a < b for a, b in zip(rows(few), rows(x), strict=True))
    assert torch.equal(labels, labels_of(few))  # type: ignore[arg-type]
    same = few == x[:, :16]
    assert not same.all(-1).all(1).any()


def test_dropped_elements_are_replaced_by_copies(x: torch.Tensor, chance: Generator) -> None:
    changed, labels = dropped(x, labels_of(x), chance, 0.75)
    assert changed.shape == x.shape
    assert all(len(a) == 16 and a < b for a, b in zip(rows(changed), rows(x), strict=True))
    assert torch.equal(labels, labels_of(changed[:, :16]))  # type: ignore[arg-type]


def test_duplicates_come_on_top_of_the_whole_set(x: torch.Tensor, chance: Generator) -> None:
    changed, labels = duplicated(x, labels_of(x), chance, 0.5)
    assert changed.shape == (B, N + N // 2, 6)
    assert rows(changed) == rows(x)
    assert torch.equal(labels, labels_of(changed[:, :N]))  # type: ignore[arg-type]


def test_outliers_come_on_top_anywhere_in_the_cube(x: torch.Tensor, chance: Generator) -> None:
    changed, labels = outliers(x, labels_of(x), chance, 0.1, place=3)
    assert torch.equal(changed[:, :N], x)
    assert labels is not None
    assert torch.equal(labels, labels_of(x))
    added = changed[:, N:]
    assert added.shape == (B, 6, 6)
    assert added[..., :3].amin() < -0.5
    assert added[..., :3].amax() > 0.5
    torch.testing.assert_close(added[..., 3:].norm(dim=-1), torch.ones(B, 6))
    pixels, _ = outliers(x[..., :3], None, chance, 0.1, place=2)
    assert (pixels[..., 2] >= 0).all()


def test_jitter_moves_places_by_its_sigma_and_leaves_the_rest(
    x: torch.Tensor, chance: Generator
) -> None:
    for place in (2, 3):
        changed, _ = jittered(x, None, chance, 0.05, place)
        moved = (changed - x)[..., :place]
        assert moved.std().item() == pytest.approx(0.05, rel=0.1)
        assert torch.equal(changed[..., place:], x[..., place:])


def test_a_rotation_is_one_and_stays_within_its_angle(x: torch.Tensor, chance: Generator) -> None:
    largest = math.radians(45)
    changed, _ = rotated(x, None, chance, largest, place=3)
    torch.testing.assert_close(changed[..., 1], x[..., 1])  # about y
    torch.testing.assert_close(changed[..., 4], x[..., 4])
    flat = [torch.complex(each[..., 0], each[..., 2]) for each in (x, changed)]
    angles = (flat[1] / flat[0]).angle()
    torch.testing.assert_close(angles, angles[:, :1].expand(B, N))
    assert angles.abs().max() <= largest
    assert len(angles[:, 0].unique()) == B
    normals = [torch.complex(each[..., 3], each[..., 5]) for each in (x, changed)]
    torch.testing.assert_close((normals[1] / normals[0]).angle(), angles)

    in_plane, _ = rotated(x[..., :3], None, chance, largest, place=2)
    assert torch.equal(in_plane[..., 2], x[..., 2])
    torch.testing.assert_close(in_plane[..., :2].norm(dim=-1), x[..., :2].norm(dim=-1))


def test_any_rotation_keeps_all_distances_and_turns_normals_along(
    x: torch.Tensor, chance: Generator
) -> None:
    changed, _ = rotated_any_way(x, None, chance)
    for part in (slice(0, 3), slice(3, 6)):
        torch.testing.assert_close(
            changed[..., part] @ changed[..., part].mT, x[..., part] @ x[..., part].mT
        )
    torch.testing.assert_close(
        torch.linalg.cross(changed[..., :3], changed[..., 3:]).norm(dim=-1),
        torch.linalg.cross(x[..., :3], x[..., 3:]).norm(dim=-1),
    )
    # A rotation, not a reflection: triple products keep their sign.
    volumes = [torch.linalg.det(each[:, :3, :3]) for each in (x, changed)]
    torch.testing.assert_close(volumes[0], volumes[1], atol=1e-5, rtol=1e-3)


def test_the_table_goes_from_half_of_the_set_down_to_16() -> None:
    levels = [each.level for each in corruptions(1024, place=3) if each.kind == "fewer elements"]
    assert levels == ["512", "256", "128", "64", "32", "16"]
    kinds = {each.kind for each in corruptions(1024, place=3)}
    assert len(kinds) == 6
    assert "any way" not in {each.level for each in corruptions(784, place=2)}


@pytest.mark.parametrize("place", [2, 3])
def test_the_same_chance_gives_the_same_sets(place: int, x: torch.Tensor) -> None:
    x = x[..., : 3 if place == 2 else 6]
    for corruption in corruptions(N, place):
        first, second = (corruption.apply(x, None, Generator().manual_seed(3))[0] for _ in range(2))
        assert torch.equal(first, second), corruption
        assert first.shape != x.shape or not torch.equal(first, x), corruption
