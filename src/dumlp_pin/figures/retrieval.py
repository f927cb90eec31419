"""Sets and those that are most like them, as in the paper's picture of ModelNet40."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from dumlp_pin.figures._canvas import caption, figure_at, panel
from dumlp_pin.figures._sets import draw_cloud, draw_pixels

RETRIEVED = 5
QUERIES_AT_ONCE = 1024  # whose distances to all others are in memory
SIDE, GAP, TITLE, HEAD = 1.2, 0.1, 0.2, 0.22  # inches
QUERY, RIGHT, WRONG = (
    torch.tensor(colour) for colour in ((0.25, 0.25, 0.28), (0.16, 0.38, 0.66), (0.82, 0.1, 0.1))
)


def draw_retrieval(
    path: Path,
    sets: Sequence[Sequence[Tensor]],
    labels: Tensor,
    class_names: Sequence[str],
    rows: int | None = None,
) -> None:
    """A row a query: the query, then what was found, red where it is of another class.

    `sets` are of elements (N, F), one row a query, with classes `labels` (Q, 1 + K). The elements
    are points; with `rows`, the pixels of images so many rows high.
    """
    down, across = labels.shape
    with figure_at(
        path, across * (SIDE + GAP), HEAD + down * (SIDE + TITLE), of_points=rows is None
    ) as figure:
        for row, (query, classes) in enumerate(zip(sets, labels.tolist(), strict=True)):
            for place, (elements, label) in enumerate(zip(query, classes, strict=True)):
                x, y = place * (SIDE + GAP), HEAD + TITLE + row * (SIDE + TITLE)
                axes = panel(figure, x, y, SIDE, SIDE)
                ink = QUERY if place == 0 else RIGHT if label == classes[0] else WRONG
                if rows is None:
                    draw_cloud(axes, elements, ink.expand(len(elements), 3))
                else:
                    draw_pixels(axes, elements, rows, ink)
                name = str(class_names[label]).replace("_", " ")
                axes.set_title(name, fontsize=8, pad=1, color=tuple(ink.tolist()))
                if row == 0:
                    title = "query" if place == 0 else str(place)
                    caption(figure, title, x + SIDE / 2, 0.04, fontsize=9, weight="bold")


def nearest_sets(features: Tensor, queries: Tensor, count: int = RETRIEVED) -> Tensor:
    """(Q, count): the sets with the nearest features (B, F), the nearest first, without the query.

    >>> features = torch.tensor([[0.0], [1.0], [5.0], [0.5]])
    >>> nearest_sets(features, torch.tensor([0, 2]), count=2)
    tensor([[3, 1],
            [1, 3]])
    """
    found = []
    for part in queries.split(QUERIES_AT_ONCE):
        distance = torch.cdist(features[part].float(), features.float())
        distance.scatter_(1, part[:, None], torch.inf)
        found.append(distance.topk(count, largest=False).indices)
    return torch.cat(found)
