"""Parts of shapes, the truth beside the prediction, as in the paper's picture of ShapeNetPart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from dumlp_pin.figures._canvas import caption, figure_at, panel
from dumlp_pin.figures._sets import draw_cloud

PAIRS_ACROSS = 4
SIDE, GAP, TITLE, HEAD = 1.05, 0.35, 0.2, 0.2  # inches
# Told apart in print and by most colour-blind people.
PALETTE = torch.tensor(
    [
        [0.00, 0.45, 0.70],
        [0.90, 0.62, 0.00],
        [0.00, 0.62, 0.45],
        [0.80, 0.20, 0.20],
        [0.50, 0.35, 0.70],
        [0.35, 0.70, 0.90],
    ]
)


def draw_parts(
    path: Path,
    shapes: Sequence[Tensor],
    true: Sequence[Tensor],
    predicted: Sequence[Tensor],
    titles: Sequence[str],
) -> None:
    """Pairs of clouds (N, F): on the left the true parts (N,), on the right the predicted ones.

    Parts are numbered from 0 within each shape; a prediction of a part that the shape cannot have
    is -1, and black.
    """
    across = min(PAIRS_ACROSS, len(shapes))
    down = math.ceil(len(shapes) / across)
    wide, high = 2 * SIDE + GAP, SIDE + TITLE
    with figure_at(path, across * wide, HEAD + down * high, of_points=True) as figure:
        for place, (points, title) in enumerate(zip(shapes, titles, strict=True)):
            x = GAP / 2 + place % across * wide
            y = HEAD + place // across * high
            for half, labels in enumerate((true[place], predicted[place])):
                axes = panel(figure, x + half * SIDE, y + TITLE, SIDE, SIDE)
                draw_cloud(axes, points, _colours(labels))
            caption(figure, title, x + SIDE, y + 0.06)
        for pair in range(across):
            for half, text in enumerate(("true", "predicted")):
                x = GAP / 2 + pair * wide + (half + 0.5) * SIDE
                caption(figure, text, x, 0.04, weight="bold")


def _colours(labels: Tensor) -> Tensor:
    colours = PALETTE[labels.clamp(min=0) % len(PALETTE)]
    return torch.where((labels < 0)[:, None], 0.0, colours)
