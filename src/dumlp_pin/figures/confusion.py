"""Which classes are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from dumlp_pin.figures._canvas import figure_at

MOST_PRINTED = 12  # classes; with more, the counts in the cells could not be read


def draw_confusion(
    path: Path, confusion: Sequence[Sequence[int]], class_names: Sequence[str]
) -> None:
    """Counts of true (down) by predicted (across) classes, shaded by share of the true class."""
    counts = torch.tensor(confusion)
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    size = 2 + 0.22 * max(len(class_names), 14)
    with figure_at(path, size, size) as figure:
        axes = figure.subplots()
        axes.imshow(shares.sqrt().numpy(), cmap="Blues", vmin=0, vmax=1)  # rare errors show too
        places = range(len(class_names))
        axes.set_xticks(places, class_names, rotation=90 if len(class_names) > MOST_PRINTED else 0)
        axes.set_yticks(places, class_names)
        axes.set(xlabel="predicted", ylabel="true")
        axes.spines[:].set_visible(False)
        if len(class_names) <= MOST_PRINTED:
            for row, column in counts.nonzero().tolist():
                colour = "white" if shares[row, column] > 0.4 else "black"
                count = str(int(counts[row, column]))
                axes.text(column, row, count, ha="center", va="center", color=colour)
