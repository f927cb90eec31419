"""Small files in the published layouts, written from scratch."""

import gzip
import io
import json
import pickle
import struct
from functools import cache
from pathlib import Path

import h5py
import numpy as np
from PIL import Image


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    raw = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def mnist(folder: Path, suffix: str = ".gz") -> None:
    random = np.random.default_rng(0)
    for stem, count in (("train", 12), ("t10k", 5)):
        write_idx(
            folder / f"{stem}-images-idx3-ubyte{suffix}", random.integers(0, 256, (count, 28, 28))
        )
        write_idx(folder / f"{stem}-labels-idx1-ubyte{suffix}", np.arange(count) % 10)


def cloud(seed: int, points: int, normals: bool = True) -> np.ndarray:
    random = np.random.default_rng(seed)
    columns = [random.uniform(-1, 1, (points, 3))]
    if normals:
        normal = random.normal(size=(points, 3))
        columns.append(normal / np.linalg.norm(normal, axis=1, keepdims=True))
    return np.concatenate(columns, 1).astype(np.float32)


def modelnet40_text(folder: Path) -> None:
    (folder / "modelnet40_shape_names.txt").write_text("bed\nnight_stand\n")
    for split, shapes in (
        ("train", ["bed_0001", "night_stand_0001", "bed_0002"]),
        ("test", ["night_stand_0201"]),
    ):
        (folder / f"modelnet40_{split}.txt").write_text("".join(f"{name}\n" for name in shapes))
        for seed, name in enumerate(shapes):
            path = folder / name.rpartition("_")[0] / f"{name}.txt"
            path.parent.mkdir(exist_ok=True)
            np.savetxt(path, cloud(seed, 1030), "%.6f", ",")


def modelnet40_hdf5(folder: Path, normals: bool = True) -> None:
    (folder / "shape_names.txt").write_text("bed\nnight_stand\n")
    for split, files in (("train", 2), ("test", 1)):
        names = [f"ply_data_{split}{index}.h5" for index in range(files)]
        for index, name in enumerate(names):
            clouds = np.stack([cloud(10 * index + row, 2048) for row in range(2)])
            with h5py.File(folder / name, "w") as file:
                file["data"] = clouds[..., :3]
                file["label"] = np.array([[0], [1]], np.uint8)
                if normals:
                    file["normal"] = clouds[..., 3:]
        (folder / f"{split}_files.txt").write_text(
            "".join(f"data/modelnet40_ply_hdf5_2048/{name}\n" for name in names)
        )


SYNSETS = {"Airplane": "02691156", "Mug": "03797390"}  # those the shapes are of
CATEGORIES = """
    Airplane 02691156, Bag 02773838, Cap 02954340, Car 02958343, Chair 03001627, Earphone 03261776,
    Guitar 03467517, Knife 03624134, Lamp 03636649, Laptop 03642806, Motorbike 03790512,
    Mug 03797390, Pistol 03948459, Rocket 04099429, Skateboard 04225987, Table 04379243
"""
CATEGORY_TABLE = "".join("\t".join(row.split()) + "\n" for row in CATEGORIES.split(","))


def shapenetpart_hdf5(folder: Path) -> None:
    (folder / "all_object_categories.txt").write_text(CATEGORY_TABLE)
    for seed, split in enumerate(("train", "val", "test")):
        with h5py.File(folder / f"ply_data_{split}0.h5", "w") as file:
            file["data"] = np.stack([cloud(2 * seed + row, 2048, normals=False) for row in (0, 1)])
            file["label"] = np.array([[0], [11]], np.uint8)
            file["pid"] = np.array([[0, 3], [36, 37]], np.uint8).repeat(1024, 1)
        (folder / f"{split}_hdf5_file_list.txt").write_text(f"ply_data_{split}0.h5\n")


def shapenetpart_text(folder: Path) -> None:
    """One shape with more points than are kept, one with fewer."""
    (folder / "synsetoffset2category.txt").write_text(CATEGORY_TABLE)
    (folder / "train_test_split").mkdir()
    for seed, split in enumerate(("train", "val", "test")):
        entries = []
        for category, points, part in (("Airplane", 2500, 3), ("Mug", 1500, 37)):
            name = f"{SYNSETS[category]}/{split}{points}"
            path = folder / f"{name}.txt"
            path.parent.mkdir(exist_ok=True)
            parts = np.where(np.arange(points) % 2, part, part - 1)[:, None]
            np.savetxt(path, np.hstack((cloud(points + seed, points), parts)), "%.6f")
            entries.append(f"shape_data/{name}")
        listing = folder / "train_test_split" / f"shuffled_{split}_file_list.json"
        listing.write_text(json.dumps(entries))


@cache
def jpeg(width: int, height: int, seed: int = 0) -> bytes:
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8))
    file = io.BytesIO()
    coarse.resize((width, height)).save(file, "JPEG")
    return file.getvalue()


def celeba_attributes(images: int) -> np.ndarray:
    """Every image has attributes 0 and 1, or none at all."""
    attributes = np.zeros((images, 40), bool)
    attributes[:, :2] = (np.arange(1, images + 1) // 10 % 5 != 0)[:, None]
    return attributes


def celeba(folder: Path, images: int = 130) -> None:
    (folder / "img_align_celeba").mkdir()
    names = [f"{number:06d}.jpg" for number in range(1, images + 1)]
    for index, name in enumerate(names):
        size = (178, 218) if index < 3 else (40, 49)
        (folder / "img_align_celeba" / name).write_bytes(jpeg(*size, seed=index % 5))
    rows = (
        f"{name} {' '.join('1' if value else '-1' for value in row)}\n"
        for name, row in zip(names, celeba_attributes(images), strict=True)
    )
    header = f"{images}\n{' '.join(f'attribute_{index}' for index in range(40))} \n"
    (folder / "list_attr_celeba.txt").write_text(header + "".join(rows))


def python2_pickle(clouds: list[np.ndarray], labels: list[np.ndarray]) -> bytes:
    """Two objects in one file, in the words numpy used under Python 2."""
    raw = b"".join(pickle.dumps(arrays, protocol=2) for arrays in (clouds, labels))
    return raw.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def scannet(folder: Path) -> None:
    for split, sizes in (("train", (30, 7, 12)), ("test", (9,))):
        clouds = [cloud(size, size, normals=False) for size in sizes]
        labels = [np.arange(size) % 21 for size in sizes]
        (folder / f"scannet_{split}.pickle").write_bytes(python2_pickle(clouds, labels))


# layout -> (data set, writer, the file that the tests of broken files break)
LAYOUTS = {
    "mnist": ("mnist", mnist, "train-images-idx3-ubyte.gz"),
    "modelnet40-text": ("modelnet40", modelnet40_text, "bed/bed_0002.txt"),
    "modelnet40-hdf5": ("modelnet40", modelnet40_hdf5, "ply_data_train1.h5"),
    "shapenetpart-hdf5": ("shapenetpart", shapenetpart_hdf5, "ply_data_train0.h5"),
    "shapenetpart-text": ("shapenetpart", shapenetpart_text, "03797390/train1500.txt"),
    "celeba": ("celeba", celeba, "img_align_celeba/000004.jpg"),
    "scannet": ("scannet", scannet, "scannet_train.pickle"),
}
