"""Scenes as sets: columns of full height, 1.5 m wide, cut as PointNet++ cuts them.

A column is seen with a margin around it, whose points do not count. From all that is seen, points
are drawn with replacement. Their coordinates, in metres, start in the middle of the column, at the
height of the lowest point of the scene.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

WIDTH = 1.5
MARGIN = 0.2
BORDER = 0.001  # what lies on the border of two columns counts in both
IGNORED = -100  # the label of what does not count; PyTorch's cross entropy leaves it out

ATTEMPTS = 10  # at a column to train on that is ...
LEAST_ANNOTATED = 0.7  # ... in this part annotated, and ...
LEAST_OCCUPIED = 0.02  # ... in this part of its cells not empty
CELLS = (31, 31, 62)

LEAST_COUNTED = 0.01  # a column to score counts in this part of its drawn points, or is left out


def random_column(points: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The column around a random point of a scene: `count` points and their labels.

    Up to ten are tried for one that is annotated and not nearly empty; the last is taken as it is.

    >>> scene = torch.rand(50_000, 3) * torch.tensor([6.0, 4.0, 2.5])
    >>> points, labels = random_column(scene, torch.ones(50_000, dtype=torch.uint8), count=1024)
    >>> points.shape, labels.unique()  # what does not count is -100
    (torch.Size([1024, 3]), tensor([-100,    1]))
    """
    floor, ceiling = points[:, 2].aminmax()
    attempts = 0
    while True:
        attempts += 1
        around = points[torch.randint(len(points), (), device=points.device)]
        column = _cut(points, labels, torch.stack((around[0], around[1], floor)))
        if attempts == ATTEMPTS or (
            column.is_annotated() and column.is_occupied(height=ceiling - floor)
        ):
            return column.draw(count)


def covering_columns(
    points: Tensor, labels: Tensor, count: int, generator: Generator | None = None
) -> tuple[Tensor, Tensor]:
    """The C columns that cover a scene: points (C, count, 3) and labels (C, count)."""
    least, most = points.amin(0), points.amax(0)
    columns, rows = ((most - least)[:2] / WIDTH).ceil().clamp(min=1).int().tolist()
    drawn = []
    for column, row in itertools.product(range(columns), range(rows)):
        middle = least + WIDTH * torch.tensor([column + 0.5, row + 0.5, 0], device=points.device)
        seen = _cut(points, labels, middle)
        if len(seen.points):
            x, target = seen.draw(count, generator)
            if (target != IGNORED).float().mean() >= LEAST_COUNTED:
                drawn.append((x, target))
    if not drawn:
        return points.new_empty(0, count, 3), labels.new_empty(0, count, dtype=torch.long)
    each_x, each_target = zip(*drawn, strict=True)
    return torch.stack(each_x), torch.stack(each_target)


@dataclass
class _Seen:
    """What a column and its margin hold of a scene. M points."""

    points: Tensor  # (M, 3), from the middle and the floor
    labels: Tensor  # (M,)
    inside: Tensor  # (M,) bool, not in the margin

    def is_annotated(self) -> bool:
        return bool((self.labels > 0).float().mean() >= LEAST_ANNOTATED)

    def is_occupied(self, height: Tensor) -> bool:
        x, y, z = self.points[self.inside].unbind(-1)
        shares = (x / WIDTH + 0.5, y / WIDTH + 0.5, z / height.clamp(min=BORDER))
        i, j, k = ((share * n).long() for share, n in zip(shares, CELLS, strict=True))
        occupied = len(torch.unique((i * 100 + j) * 100 + k))
        return occupied >= LEAST_OCCUPIED * math.prod(CELLS)

    def draw(self, count: int, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        labels = self.labels.masked_fill(~self.inside, IGNORED)
        device = labels.device
        index = torch.randint(len(labels), (count,), generator=generator, device=device)
        return self.points[index], labels[index]


def _cut(points: Tensor, labels: Tensor, middle: Tensor) -> _Seen:
    from_middle = points - middle
    distance = from_middle[:, :2].abs().amax(1)
    seen = distance <= WIDTH / 2 + MARGIN
    inside = distance[seen] <= WIDTH / 2 + BORDER
    return _Seen(from_middle[seen], labels[seen].long(), inside)
