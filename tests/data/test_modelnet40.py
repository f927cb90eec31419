from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from dumlp_pin.data import DataError, Shapes

from .published import cloud, modelnet40_hdf5


def normalised(points: np.ndarray) -> np.ndarray:
    centred = points[:1024, :3] - points[:1024, :3].mean(0)
    coordinates = centred / np.linalg.norm(centred, axis=1).max()
    return np.concatenate((coordinates, points[:1024, 3:]), 1)


@pytest.mark.parametrize("layout", ["modelnet40-text", "modelnet40-hdf5"])
def test_keeps_the_first_points_in_the_unit_sphere(
    layout: str, published: Callable, read: Callable[..., Shapes]
) -> None:
    record = read(layout, published(layout))
    points = cloud(0, 1030 if layout.endswith("text") else 2048)
    np.testing.assert_allclose(record.points[0], normalised(points), atol=2e-6)
    assert record.points.shape[1:] == (1024, 6)
    assert record.class_names == ("bed", "night_stand")


def test_shapes_are_in_the_order_of_the_list(
    published: Callable, read: Callable[..., Shapes]
) -> None:
    record = read("modelnet40-text", published("modelnet40-text"))
    assert record.labels.tolist() == [0, 1, 0]
    np.testing.assert_allclose(record.points[2], normalised(cloud(2, 1030)), atol=2e-6)


def test_hdf5_without_normals(tmp_path: Path, read: Callable[..., Shapes]) -> None:
    modelnet40_hdf5(tmp_path, normals=False)
    record = read("modelnet40-hdf5", tmp_path)
    assert record.points.shape == (4, 1024, 3)
    assert record.labels.tolist() == [0, 1, 0, 1]


def test_hdf5_with_normals_in_some_files(published: Callable, read: Callable) -> None:
    folder = published("modelnet40-hdf5")
    with h5py.File(folder / "ply_data_train1.h5", "a") as file:
        del file["normal"]
    with pytest.raises(DataError, match=r"ply_data_train1.h5: some files of this split have"):
        read("modelnet40-hdf5", folder)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("data", np.zeros((2, 2048, 3), np.float64), "expected float32"),
        ("data", np.zeros((2, 2048, 4), np.float32), "got float32 of shape"),
        ("data", np.zeros(3, np.float32), "expected float32 of shape"),
        ("data", np.float32(3), "expected float32 of shape"),
        ("data", np.zeros((2, 1000, 3), np.float32), "expected float32"),  # normals: 2,048
        ("data", np.zeros((2, 2048, 3), np.float32), "all points of a shape coincide"),
        ("data", np.full((2, 2048, 3), np.nan, np.float32), "NaN"),
        ("label", np.array([[0], [2]], np.uint8), "must lie in 0..1, found 0..2"),
        ("label", np.array([[0], [-1]], np.int8), "must lie in 0..1, found -1..0"),
        ("label", np.array([[0], [0.5]]), "expected whole numbers"),
        ("label", np.array([[0], [np.nan]]), "expected whole numbers"),
        ("label", np.array([0], np.uint8), "expected float32 of shape (1, 2048, 3)"),
        ("label", np.array([[0], [2**63]], np.uint64), "found 0..9223372036854775808"),
        ("label", np.array([[0], [np.inf]]), "must lie in 0..1"),
        ("label", np.array([[0], [1]], np.longdouble), "not an array of numbers"),
        ("label", np.array([[b"a"], [b"b"]]), "not an array of numbers"),
    ],
)
def test_wrong_arrays(
    key: str, value: np.ndarray, words: str, published: Callable, read: Callable
) -> None:
    folder = published("modelnet40-hdf5")
    with h5py.File(folder / "ply_data_train1.h5", "a") as file:
        del file[key]
        file[key] = value
    with pytest.raises(DataError, match=r"ply_data_train1.h5") as caught:
        read("modelnet40-hdf5", folder)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,0,0,0,0,nan\n", "NaN or infinite"),
        ("0,0,0,0,0,1e999\n", "NaN or infinite"),
        ("0,0,0,0,0\n", "expected 6 columns, got 5"),
        ("0,0,0,0,0,x\n", "not a table of numbers"),
        ("0 0 0 0 0 0\n", "not a table of numbers"),
    ],
)
def test_wrong_text(text: str, words: str, published: Callable, read: Callable) -> None:
    folder = published("modelnet40-text")
    (folder / "bed" / "bed_0002.txt").write_text(text * 1024)
    with pytest.raises(DataError, match=rf"bed_0002.txt: .*{words}"):
        read("modelnet40-text", folder)


def test_too_few_points(published: Callable, read: Callable) -> None:
    folder = published("modelnet40-text")
    (folder / "bed" / "bed_0002.txt").write_text("0,0,0,0,0,0\n" * 1023)
    with pytest.raises(DataError, match="expected at least 1024 points, got 1023"):
        read("modelnet40-text", folder)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ("sofa_0001", "'sofa_0001' is of none of the classes"),
        ("bed_0001", "names a shape twice"),
        ("../../bed_0001", "is of none of the classes"),
        ("bed_/../../secret", "no such file"),
    ],
)
def test_wrong_list(listed: str, words: str, published: Callable, read: Callable) -> None:
    folder = published("modelnet40-text")
    with (folder / "modelnet40_train.txt").open("a") as file:
        file.write(f"{listed}\n")
    with pytest.raises(DataError, match=words):
        read("modelnet40-text", folder)


def test_numbers_in_another_byte_order(published: Callable, read: Callable) -> None:
    folder = published("modelnet40-hdf5")
    expected = read("modelnet40-hdf5", folder)
    with h5py.File(folder / "ply_data_train1.h5", "a") as file:
        for key, kind in (("data", ">f4"), ("label", ">u2")):
            values = np.asarray(file[key]).astype(kind)
            del file[key]
            file[key] = values
    found = read("modelnet40-hdf5", folder)
    assert torch.equal(found.points, expected.points)
    assert torch.equal(found.labels, expected.labels)


def test_links_in_hdf5_are_refused(published: Callable, read: Callable, tmp_path: Path) -> None:
    folder = published("modelnet40-hdf5")
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["data"] = torch.zeros(2, 2048, 3).numpy()
    with h5py.File(folder / "ply_data_train1.h5", "a") as file:
        del file["data"]
        file["data"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "data")
    with pytest.raises(DataError, match="'data' points out of the file"):
        read("modelnet40-hdf5", folder)


def test_external_storage_in_hdf5_is_refused(
    published: Callable, read: Callable, tmp_path: Path
) -> None:
    folder = published("modelnet40-hdf5")
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(2 * 2048 * 3 * 4))
    with h5py.File(folder / "ply_data_train1.h5", "a") as file:
        del file["data"]
        file.create_dataset("data", (2, 2048, 3), np.float32, external=str(secret))
    with pytest.raises(DataError, match="'data' points out of the file"):
        read("modelnet40-hdf5", folder)


def test_a_small_hdf5_file_that_claims_terabytes(published: Callable, read: Callable) -> None:
    folder = published("modelnet40-hdf5")
    with h5py.File(folder / "ply_data_train1.h5", "a") as file:
        del file["data"]
        file.create_dataset("data", (1 << 30, 2048, 3), np.float32, chunks=(1, 2048, 3))
    with pytest.raises(DataError, match="'data' claims 26388279066624 bytes"):
        read("modelnet40-hdf5", folder)
