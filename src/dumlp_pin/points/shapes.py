"""Files as what a model was trained on: upright, as many points, centred, scaled, with normals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from dumlp_pin.data import shapenetpart
from dumlp_pin.data.clouds import unit_sphere
from dumlp_pin.points.files import read_points
from dumlp_pin.points.normals import estimate_normals
from dumlp_pin.pretrained import Pretrained

Axis = Literal["x", "y", "z"]

# The rows are the axes of a file that become x, y and z, so that y points up.
UPRIGHT = {
    "x": np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]),
    "y": np.eye(3),
    "z": np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]]),
}


@dataclass(frozen=True)
class Shape:
    path: Path
    points: Tensor  # (N, F) float32
    normals: str  # where they are from


@dataclass(frozen=True)
class ShapeReader:
    """Reads shapes of `points` points: those farthest from one another among `dense` drawn ones.

    Of a shape that has fewer, all are taken. `features` is 3, or 6 with normals.
    """

    points: int
    dense: int
    features: int
    up: Axis = "y"

    @classmethod
    def for_model(cls, found: Pretrained, up: Axis = "y") -> ShapeReader:
        """As the shapes were made that the model learned from."""
        data, features = found.recipe.data, found.model().in_features
        if data.name == "modelnet40":
            # Of 10,000 points on the surface, the published files have the farthest first.
            return cls(data.points or 1024, 10_000, features, up)
        if data.name == "shapenetpart":
            points = data.points or shapenetpart.POINTS
            return cls(points, points, features, up)
        raise ValueError(
            f"{found.recipe.model.name} learned from {data.name}: files of points are for models "
            "of modelnet40 and shapenetpart"
        )

    def read(self, path: Path, seed: int = 0) -> Shape:
        dense = read_points(path, max(self.dense, self.points), seed)
        vectors = dense.reshape(len(dense), -1, 3)  # coordinates, and the normal if there is one
        dense = (vectors @ UPRIGHT[self.up].T).reshape(dense.shape)
        chosen = farthest_points(dense[:, :3], self.points)
        points = torch.from_numpy(unit_sphere(dense[chosen], str(path)))
        if self.features == 3:
            return Shape(path, points[:, :3], "not used")
        if points.shape[1] == 6:
            return Shape(path, points, "given")
        cloud = torch.from_numpy(unit_sphere(dense, str(path)))
        normals = estimate_normals(cloud[torch.from_numpy(chosen)], cloud)
        return Shape(path, torch.cat((points, normals), 1), "estimated")

    def read_all(self, paths: Sequence[Path], notes: Console) -> Iterator[Shape]:
        """The shapes of all files that can be read; of the others a line of `notes` says why.

        Where some cannot, an error says so at the end.
        """
        failed = 0
        for path in track(
            paths, "reading", console=notes, transient=True, disable=not notes.is_terminal
        ):
            try:
                yield self.read(path)
            except (ValueError, OSError, ModuleNotFoundError) as error:
                if len(paths) == 1:
                    raise
                failed += 1
                notes.print(str(error), soft_wrap=True, markup=False, highlight=False)
        if failed:
            raise ValueError(f"{failed} of {len(paths)} files could not be read")


def farthest_points(points: np.ndarray, count: int) -> np.ndarray:
    """(count,): each next point is the farthest from those before; all, in their order, if fewer.

    >>> farthest_points(np.array([[0.0], [1.0], [9.0], [5.0]]), 3)
    array([0, 2, 3])
    """
    if len(points) <= count:
        return np.arange(len(points))
    chosen = np.zeros(count, np.int64)
    centred = points - points.mean(0)
    squares = (centred**2).sum(1)
    distance = np.full(len(points), np.inf)
    for place in range(1, count):
        last = chosen[place - 1]
        from_last = squares - 2 * (centred @ centred[last]) + squares[last]
        np.minimum(distance, from_last, out=distance)
        distance[last] = -np.inf  # where points coincide, none is chosen twice either
        chosen[place] = distance.argmax()
    return chosen
