"""Meshes: OFF, OBJ and STL read here, PLY by trimesh, and points drawn from their surface."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dumlp_pin._errors import need
from dumlp_pin.data.checks import DataError

LARGEST = 2**30  # bytes of a file; in memory a mesh takes some times as many


@dataclass(frozen=True)
class Mesh:
    """Triangles (F, 3): the numbers of their corners among the vertices (V, 3)."""

    vertices: np.ndarray
    faces: np.ndarray

    def __post_init__(self) -> None:
        V = len(self.vertices)
        if self.faces.size and not 0 <= self.faces.min() <= self.faces.max() < V:
            raise ValueError(
                f"faces name vertices {self.faces.min()}..{self.faces.max()}, there are {V}"
            )

    def sample(self, count: int, random: np.random.Generator) -> np.ndarray:
        """(count, 6): points spread evenly over the surface, with the normals of their faces.

        >>> triangle = Mesh(np.eye(3), np.array([[0, 1, 2]]))
        >>> points = triangle.sample(5, np.random.default_rng(0))
        >>> points[:, :3].sum(1), points[0, 3:]
        (array([1., 1., 1., 1., 1.]), array([0.577..., 0.577..., 0.577...]))
        """
        corner, *others = np.moveaxis(self.vertices[self.faces], 1, 0)
        along, across = (other - corner for other in others)
        normals = np.cross(along, across)
        areas = np.linalg.norm(normals, axis=1)  # twice the areas, which is all the same here
        if not areas.any():
            raise ValueError("its faces have no area")
        face = random.choice(len(areas), count, p=areas / areas.sum())
        # Uniform in the parallelogram, whose far half is folded onto the triangle.
        u, v = random.random((2, count, 1))
        beyond = u + v > 1
        u, v = np.where(beyond, 1 - u, u), np.where(beyond, 1 - v, v)
        points = corner[face] + u * along[face] + v * across[face]
        return np.concatenate((points, normals[face] / areas[face, None]), 1)


def read_off(path: Path) -> Mesh:
    lines = [line for raw in _text(path).splitlines() if (line := raw.partition("#")[0].strip())]
    # Many files of ModelNet40 have the counts in the line of the header, right behind the word.
    header = re.fullmatch(r"(?:ST)?C?N?OFF(.*)", lines.pop(0)) if lines else None
    if header is None:
        raise ValueError("the first line is not OFF")
    V, F = (int(count) for count in (header[1] or lines.pop(0)).split()[:2])
    if min(V, F) < 0 or len(lines) < V + F:
        raise ValueError(f"{V} vertices and {F} faces announced, {len(lines)} lines follow")
    vertices = [line.split()[:3] for line in lines[:V]]
    polygons = []
    for line in lines[V : V + F]:
        size, *corners = line.split()  # a colour may follow
        polygons.append([int(corner) for corner in corners[: int(size)]])
        if len(polygons[-1]) != int(size):
            raise ValueError(f"a face of {size} vertices is written {line!r:.60}")
    return _mesh(vertices, polygons)


def read_obj(path: Path) -> Mesh:
    vertices, polygons = [], []
    for line in _text(path).replace("\\\n", " ").splitlines():
        match line.split():
            case ["v", *numbers]:
                vertices.append(numbers[:3])
            case ["f", *corners]:
                # "7/1/3" is vertex 7 with its texture and normal; "-1" is the last one so far.
                numbers = [int(corner.partition("/")[0]) for corner in corners]
                polygons.append([n - 1 if n > 0 else len(vertices) + n for n in numbers])
    return _mesh(vertices, polygons)


def read_stl(path: Path) -> Mesh:
    _check_size(path)
    raw = path.read_bytes()
    # Some binary files begin with "solid" as text does; only their length is certain.
    if len(raw) >= 84 and len(raw) == 84 + 50 * (F := int.from_bytes(raw[80:84], "little")):
        record = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("colour", "<u2")])
        vertices = np.frombuffer(raw, record, F, 84)["corners"].reshape(-1, 3).astype(np.float64)
    elif raw.lstrip().startswith(b"solid"):
        text = raw.decode("utf-8", "replace").lower()
        numbers = [
            line.split()[1:4] for line in text.splitlines() if line.split()[:1] == ["vertex"]
        ]
        if len(numbers) % 3 or not text.rstrip().rpartition("\n")[2].startswith("endsolid"):
            raise ValueError("the text is cut off")
        vertices = _numbers(numbers)
    else:
        raise ValueError("neither text nor of the length that a binary file announces")
    return Mesh(vertices, np.arange(len(vertices)).reshape(-1, 3))


def load_by_trimesh(path: Path) -> Mesh:
    _check_size(path)
    trimesh = need("trimesh", "points")
    with path.open("rb") as file:
        mesh = trimesh.load_mesh(file, file_type=path.suffix[1:].lower(), process=False)
    return Mesh(np.asarray(mesh.vertices, np.float64), np.asarray(mesh.faces, np.int64))


def _text(path: Path) -> str:
    _check_size(path)
    return path.read_text(encoding="utf-8", errors="replace")


def _check_size(path: Path) -> None:
    size = path.stat().st_size
    if size > LARGEST:
        raise DataError(
            f"{path}: a mesh of {size / 2**30:.1f} GB; meshes are read whole, up to "
            f"{LARGEST / 2**30:.0f} GB: simplify it, or convert it to points"
        )


def _mesh(vertices: Sequence[Sequence[str]], polygons: Sequence[Sequence[int]]) -> Mesh:
    """Polygons are cut into triangles around their first corner."""
    faces = [
        (polygon[0], polygon[corner], polygon[corner + 1])
        for polygon in polygons
        for corner in range(1, len(polygon) - 1)
    ]
    return Mesh(_numbers(vertices), np.array(faces, np.int64).reshape(-1, 3))


def _numbers(words: Sequence[Sequence[str]]) -> np.ndarray:
    if any(len(each) != 3 for each in words):
        raise ValueError("a vertex has fewer than three coordinates")
    return np.array(words, dtype=np.float64).reshape(-1, 3)
