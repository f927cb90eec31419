"""ShapeNetPart: `hdf5_data`, or the text files with normals of its annotation benchmark."""

import json
import zlib
from pathlib import PurePosixPath

import numpy as np
import torch

from dumlp_pin.data.checks import DataError, check_finite, check_tensor, whole_numbers
from dumlp_pin.data.clouds import parse_table, read_hdf5, unit_sphere
from dumlp_pin.data.records import PartShapes
from dumlp_pin.data.source import Source

POINTS = 2048
# Categories in the order of their labels; the labels of their parts follow one another.
PARTS = {
    "Airplane": 4,
    "Bag": 2,
    "Cap": 2,
    "Car": 4,
    "Chair": 4,
    "Earphone": 3,
    "Guitar": 3,
    "Knife": 2,
    "Lamp": 4,
    "Laptop": 2,
    "Motorbike": 6,
    "Mug": 2,
    "Pistol": 3,
    "Rocket": 3,
    "Skateboard": 3,
    "Table": 3,
}
CATEGORIES = tuple(PARTS)
PART_OFFSETS = torch.tensor((0, *PARTS.values())).cumsum(0)


def read(source: Source, split: str) -> PartShapes:
    if listing := source.find(f"{split}_hdf5_file_list.txt"):
        return _read_hdf5(source, split, listing)
    if listing := source.find(f"shuffled_{split}_file_list.json"):
        return _read_text(source, split, listing)
    raise DataError(
        f"{source.where}: holds neither {split}_hdf5_file_list.txt (hdf5_data) nor "
        f"shuffled_{split}_file_list.json (shapenetcore_partanno_segmentation_benchmark_v0_normal)"
    )


def _read_hdf5(source: Source, split: str, listing: str) -> PartShapes:
    folder = PurePosixPath(listing).parent
    table = folder / "all_object_categories.txt"
    if list(_categories(source, table).values()) != list(range(len(CATEGORIES))):
        raise DataError(f"{source.locate(str(table))}: expected the 16 categories in their order")
    points, labels, parts = [], [], []
    for line in source.read_lines(listing):
        name = str(folder / PurePosixPath(line).name)
        where = source.locate(name)
        arrays = read_hdf5(source, name, ("data", "label", "pid"))
        if len(arrays) != 3:
            raise DataError(f"{where}: expected arrays data, label and pid, found {sorted(arrays)}")
        data = torch.from_numpy(arrays["data"])
        check_tensor(f"{where} data", data, torch.float32, (None, POINTS, 3))
        check_finite(f"{where} data", data)
        label = whole_numbers(f"{where} label", arrays["label"].reshape(-1), len(CATEGORIES))
        check_tensor(f"{where} label", label, torch.int64, (len(data),))
        pid = whole_numbers(f"{where} pid", arrays["pid"], int(PART_OFFSETS[-1]))
        check_tensor(f"{where} pid", pid, torch.int64, (len(data), POINTS))
        points.append(data)
        labels.append(label)
        parts.append(pid.to(torch.uint8))
    if not points:
        raise DataError(f"{source.locate(listing)}: names no file")
    return _part_shapes(split, torch.cat(points), torch.cat(labels), torch.cat(parts))


def _read_text(source: Source, split: str, listing: str) -> PartShapes:
    folder = PurePosixPath(listing).parent.parent
    categories = _categories(source, folder / "synsetoffset2category.txt")
    index_of = {}
    for index, entry in enumerate(_entries(source, listing)):
        synset, _, shape = entry.removeprefix("shape_data/").partition("/")
        if synset not in categories:
            raise DataError(f"{source.locate(listing)}: {entry!r} is of none of the categories")
        index_of[str(folder / synset / f"{shape}.txt")] = index

    points = np.empty((len(index_of), POINTS, 3), np.float32)
    labels = np.empty(len(index_of), np.int64)
    parts = np.empty((len(index_of), POINTS), np.uint8)
    for name, raw in source.read_each(index_of, f"shapenetpart {split}"):
        where, index = source.locate(name), index_of[name]
        table = parse_table(raw, where, columns=7)
        part = whole_numbers(f"{where} part labels", table[:, 6], int(PART_OFFSETS[-1]))
        # The HDF5 files hold shapes in the unit sphere; all points count, then some are drawn.
        rows = _draw(len(table), PurePosixPath(name).stem)
        points[index] = unit_sphere(table[:, :3], where)[rows]
        parts[index] = part[rows].numpy()
        labels[index] = categories[PurePosixPath(name).parent.name]
    return _part_shapes(split, *(torch.from_numpy(array) for array in (points, labels, parts)))


def _draw(count: int, shape: str) -> np.ndarray:
    """2,048 of so many rows in a random order of the shape's own; where fewer, all and repeats."""
    # RandomState, since numpy promises its stream for ever and that of Generator it does not.
    random = np.random.RandomState(zlib.crc32(shape.encode()))
    repeats = random.randint(0, count, max(POINTS - count, 0))
    return np.concatenate((random.permutation(count)[:POINTS], repeats))


def _entries(source: Source, listing: str) -> list[str]:
    """The names in a split's JSON list: shape_data/SYNSET/SHAPE."""
    try:
        entries = json.loads(source.read(listing))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source.locate(listing)}: broken JSON: {error}") from error
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise DataError(f"{source.locate(listing)}: expected a list of names")
    if len(set(entries)) != len(entries):
        raise DataError(f"{source.locate(listing)}: names a shape twice")
    return entries


def _categories(source: Source, name: PurePosixPath) -> dict[str, int]:
    """The publisher's table of categories: synset -> label."""
    synsets = {}
    for line in source.read_lines(str(name)):
        category, *synset = line.split()
        if category not in CATEGORIES or len(synset) != 1:
            raise DataError(f"{source.locate(str(name))}: {line!r} is none of the 16 categories")
        synsets[synset[0]] = CATEGORIES.index(category)
    return synsets


def _part_shapes(
    split: str, points: torch.Tensor, labels: torch.Tensor, parts: torch.Tensor
) -> PartShapes:
    return PartShapes(
        name="shapenetpart",
        split=split,
        class_names=CATEGORIES,
        points=points,
        labels=labels,
        parts=parts,
        part_offsets=PART_OFFSETS,
    )
