"""What the activations of the two branches do to the accuracy: the paper's Figure 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dumlp_pin.figures._canvas import figure_at
from dumlp_pin.training.results import mean_and_spread

NAMES = {
    "softmax": "softmax",
    "none": "none",
    "relu": "ReLU",
    "elu": "ELU",
    "squash": "squashing",
    "squash_authors": "squashing,\nauthors'",
}


def draw_activations(path: Path, scores: Mapping[tuple[str, str], Sequence[float]]) -> None:
    """Scores in %, one a seed, for each pair of activations; a pair in the other order is the same.

    A cell has the mean and, below it, the standard deviation; one without a run stays white.
    """
    names = [name for name in NAMES if any(name in pair for pair in scores)]
    means = np.full((len(names), len(names)), np.nan)
    texts = {}
    for pair, values in scores.items():
        if not values:
            continue
        mean, spread = mean_and_spread(values)
        for row, column in {(0, 1), (1, 0)}:
            place = names.index(pair[row]), names.index(pair[column])
            means[place] = mean
            texts[place] = f"{mean:.2f}" + (f"\n± {spread:.2f}" if spread is not None else "")
    # A pair that fails altogether would leave one shade to all the others.
    high = float(np.nanmax(means))
    low = max(float(np.nanmin(means)), high - 5)
    with figure_at(path, 1.5 + 0.95 * len(names), 0.6 + 0.75 * len(names)) as figure:
        axes = figure.subplots()
        shades = axes.imshow(means, cmap="Blues", vmin=low - 0.2 * (high - low), vmax=high)
        axes.set_aspect("auto")
        places = range(len(names))
        axes.set_xticks(places, [NAMES[name] for name in names])
        axes.set_yticks(places, [NAMES[name] for name in names])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for row in places:
            for column in places:
                text = texts.get((row, column), "not run")
                dark = means[row, column] > low + 0.6 * (high - low)
                colour = "white" if dark else "black" if (row, column) in texts else "0.6"
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)
        bar = figure.colorbar(shades, ax=axes, shrink=0.8)
        bar.set_label("accuracy, last epoch (%)")
        bar.outline.set_visible(False)  # type: ignore[operator]
