"""ModelNet40: `modelnet40_normal_resampled` (text) or `modelnet40_ply_hdf5_2048` (HDF5)."""

from pathlib import PurePosixPath

import numpy as np
import torch

from dumlp_pin.data.checks import DataError, check_finite, check_tensor, whole_numbers
from dumlp_pin.data.clouds import parse_table, read_hdf5, unit_sphere
from dumlp_pin.data.records import Shapes
from dumlp_pin.data.source import Source


def read(source: Source, split: str, points: int = 1024) -> Shapes:
    """Keep the first points of every shape: the text files are ordered farthest point first."""
    if listing := source.find(f"modelnet40_{split}.txt"):
        return _read_text(source, split, listing, points)
    if listing := source.find(f"{split}_files.txt"):
        return _read_hdf5(source, split, listing, points)
    raise DataError(
        f"{source.where}: holds neither modelnet40_{split}.txt (modelnet40_normal_resampled) "
        f"nor {split}_files.txt (modelnet40_ply_hdf5_2048)"
    )


def _read_text(source: Source, split: str, listing: str, points: int) -> Shapes:
    folder = PurePosixPath(listing).parent
    class_names = _class_names(source, folder / "modelnet40_shape_names.txt")
    index_of: dict[str, int] = {}
    labels = []
    for shape in source.read_lines(listing):
        kind = shape.rpartition("_")[0]
        if kind not in class_names:
            raise DataError(f"{source.locate(listing)}: {shape!r} is of none of the classes")
        index_of[str(folder / kind / f"{shape}.txt")] = len(labels)
        labels.append(class_names.index(kind))
    if len(index_of) != len(labels):
        raise DataError(f"{source.locate(listing)}: names a shape twice")

    clouds = np.empty((len(labels), points, 6), np.float32)
    for name, raw in source.read_each(index_of, f"modelnet40 {split}"):
        where = source.locate(name)
        table = parse_table(raw, where, columns=6, separator=",", rows=points)
        clouds[index_of[name]] = unit_sphere(table, where)
    return _shapes(split, class_names, clouds, np.asarray(labels))


def _read_hdf5(source: Source, split: str, listing: str, points: int) -> Shapes:
    folder = PurePosixPath(listing).parent
    class_names = _class_names(source, folder / "shape_names.txt")
    clouds, labels = [], []
    # The list names files by where they lay on the publisher's disk.
    files = [str(folder / PurePosixPath(line).name) for line in source.read_lines(listing)]
    for name in files:
        where = source.locate(name)
        arrays = read_hdf5(source, name, ("data", "normal", "label"))
        if not {"data", "label"} <= arrays.keys():
            raise DataError(f"{where}: expected arrays data and label, found {sorted(arrays)}")
        label = whole_numbers(f"{where} label", arrays.pop("label").reshape(-1), len(class_names))
        B, N = len(label), arrays["data"].shape[1] if arrays["data"].ndim > 1 else 0
        for key, array in arrays.items():
            check_tensor(f"{where} {key}", torch.from_numpy(array), torch.float32, (B, N, 3))
            check_finite(f"{where} {key}", torch.from_numpy(array))
        if points > N:
            raise DataError(f"{where}: expected at least {points} points, got {N}")
        if clouds and clouds[0].shape[2] != 3 * len(arrays):
            raise DataError(f"{where}: some files of this split have normals and some have none")
        clouds.append(unit_sphere(np.concatenate(list(arrays.values()), -1)[:, :points], where))
        labels.append(label)
    if not clouds:
        raise DataError(f"{source.locate(listing)}: names no file")
    return _shapes(split, class_names, np.concatenate(clouds), np.concatenate(labels))


def _class_names(source: Source, name: PurePosixPath) -> tuple[str, ...]:
    names = tuple(source.read_lines(str(name)))
    if not names:
        raise DataError(f"{source.locate(str(name))}: names no class")
    return names


def _shapes(
    split: str, class_names: tuple[str, ...], clouds: np.ndarray, labels: np.ndarray
) -> Shapes:
    return Shapes(
        name="modelnet40",
        split=split,
        class_names=class_names,
        points=torch.from_numpy(clouds),
        labels=torch.from_numpy(labels.astype(np.int64)),
    )
