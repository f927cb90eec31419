"""Points from a file: of a cloud its own, of a mesh a sample of its surface."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dumlp_pin.data.checks import DataError, reason
from dumlp_pin.points.columns import Chunks
from dumlp_pin.points.mesh import Mesh, read_obj, read_off, read_stl
from dumlp_pin.points.pcd import read_pcd
from dumlp_pin.points.ply import read_ply
from dumlp_pin.points.tables import read_las, read_npy, read_npz, read_parquet, read_text

READERS: dict[str, Callable[[Path], Mesh | Chunks]] = {
    ".off": read_off,
    ".obj": read_obj,
    ".ply": read_ply,
    ".stl": read_stl,
    ".pcd": read_pcd,
    ".xyz": read_text,
    ".txt": read_text,
    ".csv": read_text,
    ".npy": read_npy,
    ".npz": read_npz,
    ".parquet": read_parquet,
    ".las": read_las,
    ".laz": read_las,
}

# What readers run into where a file is not what it says it is.
BROKEN = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    EOFError,
    OSError,
    struct.error,
    zipfile.BadZipFile,
)
MESH_POINTS = 2048  # drawn from a mesh if nothing else is asked for
LARGEST_NUMBER = float(np.finfo(np.float32).max)


def read_points(path: str | Path, count: int | None = None, seed: int = 0) -> np.ndarray:
    """(N, 3), or (N, 6) with normals: the points of a file, in double precision.

    Of a cloud, `count` points are drawn, or all are taken where it has no more; a large file is
    read once, a piece at a time. Of a mesh, `count` points are drawn from the surface, 2,048 if
    nothing is said, and the normals are those of the faces.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise DataError(
            f"{path}: expected a file of points, {' '.join(READERS)}, got {suffix or 'no suffix'}"
        )
    if count is not None and count < 1:
        raise ValueError(f"count is {count}, expected at least 1")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    random = np.random.default_rng(seed)
    try:
        content = READERS[suffix](path)
        if not isinstance(content, Mesh):
            points = draw(content, count, random)
        elif len(content.faces):
            _check_finite(content.vertices, path)
            points = content.sample(count or MESH_POINTS, random)
        else:
            points = draw(iter([content.vertices]), count, random)
    except (DataError, ModuleNotFoundError):
        raise
    except BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the file may not be read
        raise DataError(f"{path}: broken {suffix} file: {reason(error)}") from error
    if not len(points):
        raise DataError(f"{path}: holds no points")
    _check_finite(points[:, :3], path)
    return _with_normals_or_without(points)


def draw(chunks: Chunks, count: int | None, random: np.random.Generator) -> np.ndarray:
    """`count` of the rows of all chunks, every row as likely as another, in their order.

    Every row gets a random key, and the smallest keys stay: memory for `count` rows will do.

    >>> draw(iter([np.zeros((4, 3)), np.ones((4, 3))]), 4, np.random.default_rng(0))[:, 0]
    array([0., 0., 0., 1.])
    """
    if count is None:
        return np.concatenate(list(chunks) or [np.empty((0, 3))])
    drawn, seen = np.empty((0, 0)), 0
    for chunk in chunks:
        places = np.arange(seen, seen + len(chunk))
        keyed = np.column_stack((random.random(len(chunk)), places, chunk))
        drawn = np.concatenate((drawn, keyed)) if seen else keyed
        seen += len(chunk)
        if len(drawn) > count:
            drawn = drawn[np.argpartition(drawn[:, 0], count - 1)[:count]]
    return drawn[drawn[:, 1].argsort(), 2:] if seen else np.empty((0, 3))


def _check_finite(points: np.ndarray, path: Path) -> None:
    if not (np.abs(points) <= LARGEST_NUMBER).all():
        raise DataError(f"{path}: holds NaN, infinite or enormous numbers")


def _with_normals_or_without(points: np.ndarray) -> np.ndarray:
    """Only vectors of unit length are normals: others, such as colours, are left out."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(points[:, 3:], axis=1, keepdims=True)
    if points.shape[1] == 3 or not (np.abs(lengths - 1) < 0.1).all():
        return points[:, :3]
    return np.concatenate((points[:, :3], points[:, 3:] / lengths), 1)
