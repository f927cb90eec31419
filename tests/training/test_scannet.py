"""From ScanNet's published files to a score, on generated rooms: the way that its rows would go."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from dumlp_pin.pretrained import find_pretrained
from tests.commands import Run
from tests.data.published import python2_pickle

WALL, FLOOR, TABLE = 1, 2, 4
POINTS = 6000


def room(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points (6000, 3) of a floor, two walls and a table in 3 m x 3 m x 2.5 m, and labels."""
    random = np.random.default_rng(seed)
    labels = random.choice([WALL, FLOOR, TABLE], POINTS, p=[0.45, 0.4, 0.15])
    points = random.uniform([0, 0, 0], [3, 3, 2.5], (POINTS, 3))
    points[labels == FLOOR, 2] = 0
    walls = np.flatnonzero(labels == WALL)
    points[walls[::2], 0] = 0
    points[walls[1::2], 1] = 3
    points[labels == TABLE, :2] = 1 + points[labels == TABLE, :2] / 3
    points[labels == TABLE, 2] = 0.75
    return points, labels


def test_generated_rooms_are_prepared_learnt_and_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("DUMLP_PIN_DATA", str(tmp_path / "data"))
    published, out = tmp_path / "published", tmp_path / "scannet_s"
    published.mkdir()
    for split, seeds in (("train", range(6)), ("test", range(6, 8))):
        points, labels = zip(*map(room, seeds), strict=True)
        raw = python2_pickle(list(points), list(labels))
        (published / f"scannet_{split}.pickle").write_bytes(raw)
    with warnings.catch_warnings(record=True):  # they are fewer than ScanNet's
        run("data", "prepare", "scannet", "--from", published)

    changes = ["epochs=12", "batch_size=3", "data.points=512", "schedule.warmup_epochs=0"]
    settings = [word for change in changes for word in ("--set", change)]
    run("train", "scannet_s", "--out", out, "--device", "cpu", *settings)
    scores = find_pretrained(out).result["last"]
    assert scores["voxel_accuracy"] > 0.8  # always answering "wall" is right in 45 %
    assert run("evaluate", out, "--device", "cpu").lines[0] == (
        f"voxel_accuracy: {100 * scores['voxel_accuracy']:.2f} %"
    )
