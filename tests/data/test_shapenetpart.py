from collections.abc import Callable

import h5py
import numpy as np
import pytest
import torch

from dumlp_pin.data import DataError, PartShapes
from dumlp_pin.data.shapenetpart import CATEGORIES, PART_OFFSETS

from .published import cloud


def test_the_table_of_parts() -> None:
    assert len(CATEGORIES) == 16
    assert PART_OFFSETS[-1] == 50
    mug = CATEGORIES.index("Mug")
    assert PART_OFFSETS[mug : mug + 2].tolist() == [36, 38]


def test_hdf5_is_kept_as_published(published: Callable, read: Callable[..., PartShapes]) -> None:
    record = read("shapenetpart-hdf5", published("shapenetpart-hdf5"))
    expected = np.stack([cloud(row, 2048, normals=False) for row in range(2)])
    np.testing.assert_array_equal(record.points, expected)
    assert record.labels.tolist() == [0, 11]
    assert record.parts[:, [0, -1]].tolist() == [[0, 3], [36, 37]]


def test_text_is_sampled_in_the_unit_sphere(
    published: Callable, read: Callable[..., PartShapes]
) -> None:
    record = read("shapenetpart-text", published("shapenetpart-text"))
    assert record.points.shape == (2, 2048, 3)
    assert record.labels.tolist() == [0, 11]
    for points, parts, count in zip(record.points, record.parts, (2500, 1500), strict=True):
        original = cloud(count, count)[:, :3]
        original -= original.mean(0)
        original /= np.linalg.norm(original, axis=1).max()
        rows = torch.cdist(points, torch.from_numpy(original)).argmin(1)
        torch.testing.assert_close(points, torch.from_numpy(original)[rows], atol=1e-5, rtol=0)
        assert len(rows.unique()) == min(count, 2048)
        assert torch.equal(parts % 2, rows % 2 != 0 if count == 2500 else rows % 2)


def test_text_is_sampled_the_same_way_every_time(published: Callable, read: Callable) -> None:
    folder = published("shapenetpart-text")
    first, second = (read("shapenetpart-text", folder) for _ in range(2))
    assert torch.equal(first.points, second.points)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("data", np.zeros((2, 1024, 3), np.float32), "of shape (any, 2048, 3)"),
        ("data", np.full((2, 2048, 3), np.inf, np.float32), "NaN or infinite"),
        ("label", np.array([[0], [16]], np.uint8), "must lie in 0..15, found 0..16"),
        ("pid", np.full((2, 2048), 50, np.uint8), "must lie in 0..49, found 50..50"),
        ("pid", np.full((2, 2048), 256, np.int64), "must lie in 0..49, found 256..256"),
        ("pid", np.zeros((2, 2047), np.uint8), "got int64 of shape (2, 2047)"),
    ],
)
def test_wrong_arrays(
    key: str, value: np.ndarray, words: str, published: Callable, read: Callable
) -> None:
    folder = published("shapenetpart-hdf5")
    with h5py.File(folder / "ply_data_train0.h5", "a") as file:
        del file[key]
        file[key] = value
    with pytest.raises(DataError, match=r"ply_data_train0.h5") as caught:
        read("shapenetpart-hdf5", folder)
    assert words in str(caught.value)


def test_missing_array(published: Callable, read: Callable) -> None:
    folder = published("shapenetpart-hdf5")
    with h5py.File(folder / "ply_data_train0.h5", "a") as file:
        del file["pid"]
    with pytest.raises(DataError, match="expected arrays data, label and pid"):
        read("shapenetpart-hdf5", folder)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0 0 0 0 0 0 50\n", "part labels: values must lie in 0..49"),
        ("0 0 0 0 0 0 3.5\n", "part labels: expected whole numbers"),
        ("0 0 0 0 0 nan 3\n", "NaN or infinite"),
        ("0 0 0 0 0 0\n", "not a table of numbers"),
    ],
)
def test_wrong_text(row: str, words: str, published: Callable, read: Callable) -> None:
    folder = published("shapenetpart-text")
    with (folder / "03797390" / "train1500.txt").open("a") as file:
        file.write(row)
    with pytest.raises(DataError, match=rf"train1500.txt.*{words}"):
        read("shapenetpart-text", folder)


@pytest.mark.parametrize(
    ("listing", "words"),
    [
        ("[", "broken JSON"),
        ("[" * 100_000, "broken JSON"),
        ("{}", "expected a list of names"),
        ("[1]", "expected a list of names"),
        ('["shape_data/02691156/a", "shape_data/02691156/a"]', "names a shape twice"),
        ('["shape_data/00000000/a"]', "of none of the categories"),
        ('["shape_data/02691156/../../secret"]', "no such file"),
    ],
)
def test_wrong_list(listing: str, words: str, published: Callable, read: Callable) -> None:
    folder = published("shapenetpart-text")
    (folder.parent / "secret.txt").write_text("0 0 0 0 0 0 0\n1 0 0 0 0 0 0\n")
    (folder / "train_test_split" / "shuffled_train_file_list.json").write_text(listing)
    with pytest.raises(DataError, match=words):
        read("shapenetpart-text", folder)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("Table\t04379243", "Boat\t02858304", "'Boat.*' is none of the 16 categories"),
        ("Table\t04379243", "Table", "'Table' is none of the 16 categories"),
        ("Airplane\t02691156\n", "", "expected the 16 categories in their order"),
    ],
)
def test_wrong_categories(
    old: str, new: str, words: str, published: Callable, read: Callable
) -> None:
    path = published("shapenetpart-hdf5") / "all_object_categories.txt"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=rf"all_object_categories.txt: {words}"):
        read("shapenetpart-hdf5", path.parent)
