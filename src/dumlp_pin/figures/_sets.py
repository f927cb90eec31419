"""Sets on paper: point clouds seen from above and the side, and digits as their pixels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TURN, TILT = math.radians(35), math.radians(20)
PALEST = 0.5  # of the farthest points, the share of white
AREA = 1700.0  # of all points together in a panel an inch wide, in square points
LARGEST = 9.0  # of one of them


def draw_cloud(axes: Axes, points: Tensor, colours: Tensor, strength: Tensor | None = None) -> None:
    """Points (N, F), y upwards, in colours (N, 3) from 0 to 1; what is far away pales.

    The nearest lie on top, or those with the most `strength` (N,) from 0 to 1, which are larger.
    """
    flat, near = project(points[:, :3].cpu())
    near = (near - near.min()) / (near.max() - near.min()).clamp(min=1e-9)
    white = (PALEST * (1 - near))[:, None]
    order = (near if strength is None else strength.cpu()).argsort()
    shown = (colours.cpu() * (1 - white) + white)[order].clamp(0, 1)
    x, y = flat[order].T.numpy()
    width, height = extent(points)
    # The panel's inches decide how large a point may be.
    inches = axes.get_position().width * axes.get_figure(root=True).get_figwidth()  # type: ignore
    area = torch.full((len(points),), min(AREA / len(points), LARGEST) * inches**1.5)
    if strength is not None:
        area *= 0.5 + 1.5 * strength.cpu()[order]
    axes.scatter(x, y, s=area.numpy(), c=shown.numpy(), linewidths=0)
    box = axes.get_position()
    shape = axes.get_figure(root=True).get_size_inches()  # type: ignore[union-attr]
    high = box.height * shape[1] / (box.width * shape[0])  # of the panel, in its widths
    half = 0.53 * max(width, height / high)
    (left, right), (low, top) = (
        (float(values.min()), float(values.max())) for values in (flat[:, 0], flat[:, 1])
    )
    axes.set_xlim((left + right) / 2 - half, (left + right) / 2 + half)
    axes.set_ylim((low + top) / 2 - half * high, (low + top) / 2 + half * high)


def extent(points: Tensor) -> tuple[float, float]:
    """How wide and how high a cloud is on paper."""
    flat, _ = project(points[:, :3].cpu())
    width, height = (flat.amax(0) - flat.amin(0)).tolist()
    return max(width, 1e-9), max(height, 1e-9)


def project(points: Tensor) -> tuple[Tensor, Tensor]:
    """(N, 3) with y upwards -> where they are seen (N, 2), and how near (N,).

    >>> flat, near = project(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> bool(flat[0, 1] > flat[1, 1]), bool(near[1] > near[0])  # y goes up, z comes nearer
    (True, True)
    """
    x, y, z = points.T
    x, z = _turned(x, z, TURN)
    z, y = _turned(z, y, TILT)
    return torch.stack((x, y), 1), z


def _turned(u: Tensor, v: Tensor, angle: float) -> tuple[Tensor, Tensor]:
    cos, sin = math.cos(angle), math.sin(angle)
    return cos * u + sin * v, cos * v - sin * u


def draw_pixels(axes: Axes, elements: Tensor, rows: int, ink: Tensor) -> None:
    """Pixels (N, 3) of (row, column, grey) in the order of the image, in ink (3,)."""
    show_pixels(axes, 1 - elements[:, 2:].cpu() * (1 - ink), rows)


def show_pixels(axes: Axes, colours: Tensor, rows: int) -> None:
    """Colours (N, 3) in the order of an image."""
    axes.imshow(colours.view(rows, -1, 3).numpy(), interpolation="nearest")
