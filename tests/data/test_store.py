import dataclasses
import json
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dumlp_pin.data import DataError, FaceSets, Images, PartShapes, Scenes, Shapes, data_root, store

NAMES = ("a", "b")
IMAGES = Images(
    name="mnist",
    split="train",
    class_names=NAMES,
    images=torch.zeros(3, 4, 5, dtype=torch.uint8),
    labels=torch.tensor([0, 1, 1]),
)
SHAPES = Shapes(
    name="modelnet40",
    split="train",
    class_names=NAMES,
    points=torch.rand(3, 8, 6),
    labels=torch.tensor([0, 1, 1]),
)
PART_SHAPES = PartShapes(
    name="shapenetpart",
    split="train",
    class_names=NAMES,
    points=torch.rand(3, 8, 3),
    labels=torch.tensor([0, 1, 1]),
    parts=torch.zeros(3, 8, dtype=torch.uint8),
    part_offsets=torch.tensor([0, 2, 5]),
)
SCENES = Scenes(
    name="scannet",
    split="train",
    class_names=NAMES,
    points=torch.rand(7, 3),
    labels=torch.zeros(7, dtype=torch.uint8),
    offsets=torch.tensor([0, 3, 7]),
)
FACE_SETS = FaceSets(
    name="celeba",
    split="train",
    class_names=NAMES,
    images=torch.zeros(25, 3, 49, 40, dtype=torch.uint8),
    members=torch.arange(20).reshape(2, 10),
    labels=torch.tensor([0, 9]),
    attributes=torch.tensor([[0, 1], [0, 1]]),
)
RECORDS = [IMAGES, SHAPES, PART_SHAPES, SCENES, FACE_SETS]


def forge(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Change a prepared copy behind our back."""
    written = {name: tensor.clone() for name, tensor in load_file(path).items()}
    save_file({**written, **tensors}, path, {**store.read_metadata(path), **metadata})


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_reads_what_was_written(record, root: Path) -> None:
    path = store.write(record, "source.zip")
    assert path == root / record.name / "train.safetensors"
    found = store.read(path, type(record))
    assert (found.name, found.split, found.class_names, found.task, len(found)) == (
        record.name,
        "train",
        NAMES,
        record.task,
        len(record),
    )
    for name, tensor in record.tensors().items():
        assert torch.equal(found.tensors()[name], tensor)
    assert store.read_metadata(path)["source"] == "source.zip"


def test_leaves_nothing_else_behind(root: Path) -> None:
    path = store.write(IMAGES, "")
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_keeps_the_old_copy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.write(IMAGES, "old")

    def interrupted(file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.write(IMAGES, "new")
    assert list(path.parent.iterdir()) == [path]
    assert store.read_metadata(path)["source"] == "old"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_the_umask_decides_who_reads(root: Path) -> None:
    before = os.umask(0o027)
    try:
        assert stat.S_IMODE(store.write(IMAGES, "").stat().st_mode) == 0o640
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("record", "tensors", "words"),
    [
        (IMAGES, {"labels": torch.tensor([0, 1, 2])}, "labels: values must lie in 0..1"),
        (IMAGES, {"labels": torch.tensor([0.0, 1, 1])}, "labels: expected int64"),
        (IMAGES, {"labels": torch.tensor([0, 1])}, "images: expected uint8 of shape (2, any, any)"),
        (SHAPES, {"points": torch.rand(3, 8, 4)}, "points: expected 3 or 6 features, got 4"),
        (SHAPES, {"points": torch.full((3, 8, 3), torch.nan)}, "points: holds NaN"),
        (PART_SHAPES, {"parts": PART_SHAPES.parts + 5}, "parts: values must lie in 0..4"),
        (
            PART_SHAPES,
            {"parts": PART_SHAPES.parts[:, :7].clone()},
            "parts: expected uint8 of shape (3, 8)",
        ),
        (PART_SHAPES, {"part_offsets": torch.tensor([0, 5])}, "part_offsets: expected int64"),
        (SCENES, {"offsets": torch.tensor([0, 8])}, "offsets: expected to rise from 0 to 7"),
        (SCENES, {"offsets": torch.tensor([1, 7])}, "offsets: expected to rise from 0 to 7"),
        (SCENES, {"offsets": torch.tensor([0, 5, 3, 7])}, "offsets: expected to rise"),
        (SCENES, {"offsets": torch.tensor([], dtype=torch.int64)}, "offsets: expected to rise"),
        (SCENES, {"points": torch.rand(6, 3)}, "labels: expected uint8 of shape (6)"),
        (FACE_SETS, {"members": FACE_SETS.members + 6}, "members: values must lie in 0..24"),
        (FACE_SETS, {"members": FACE_SETS.members % 5}, "members: an image appears more than"),
        (FACE_SETS, {"labels": torch.tensor([0, 10])}, "labels: values must lie in 0..9"),
        (FACE_SETS, {"attributes": torch.tensor([[0, 2], [0, 1]])}, "attributes: values must"),
    ],
)
def test_wrong_tensors(record, tensors: dict[str, Tensor], words: str, root: Path) -> None:
    """Refused before they are written, and when another program wrote them."""
    with pytest.raises(DataError) as caught:
        store.write(dataclasses.replace(record, **tensors), "")
    assert str(caught.value).startswith(words)
    path = store.write(record, "")
    forge(path, tensors, {})
    with pytest.raises(DataError) as caught:
        store.read(path, type(record))
    assert str(caught.value).startswith(f"{path}: {words}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "0"}, "expected format 1, got 0; prepare it again"),
        ({"class_names": "["}, "Expecting value"),
        ({"class_names": json.dumps(["a"])}, "values must lie in 0..0"),
    ],
)
def test_wrong_metadata(change: dict[str, str], words: str, root: Path) -> None:
    path = store.write(IMAGES, "")
    forge(path, {}, change)
    with pytest.raises(DataError) as caught:
        store.read(path, Images)
    assert words in str(caught.value)


def test_tensors_of_another_kind_of_data(root: Path) -> None:
    path = store.write(IMAGES, "")
    with pytest.raises(DataError, match="unexpected keyword argument 'images'"):
        store.read(path, Shapes)


def test_a_copy_under_another_name(root: Path) -> None:
    """Training on a renamed test split must not go unnoticed."""
    path = store.write(dataclasses.replace(IMAGES, split="test"), "")
    renamed = path.rename(path.with_stem("train"))
    with pytest.raises(DataError, match=r"train.safetensors: holds mnist test$"):
        store.read(renamed, Images)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_truncated(size: int, root: Path) -> None:
    path = store.write(IMAGES, "")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match="broken file"):
        store.read(path, Images)


def test_data_root_without_a_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DUMLP_PIN_DATA", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root() == tmp_path / "dumlp-pin"
    monkeypatch.setattr("sys.platform", "darwin")
    assert data_root() == Path.home() / "Library" / "Caches" / "dumlp-pin"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert data_root() == tmp_path / "local" / "dumlp-pin"
