"""Features of sets in the plane, as in the paper's picture of MNIST."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from dumlp_pin._errors import need
from dumlp_pin.figures._canvas import figure_at, without_frame

MOST_COLOURS = 10  # classes that colours tell apart; with more, names stand in the picture


def draw_tsne(path: Path, features: Tensor, labels: Tensor, class_names: Sequence[str]) -> None:
    """t-SNE of features (B, F), a colour for each of the classes `labels` (B,)."""
    tab10 = need("matplotlib", "figures").colormaps["tab10"]
    hsv_to_rgb = need("matplotlib.colors", "figures").hsv_to_rgb
    tsne = need("sklearn.manifold", "figures").TSNE(init="pca", random_state=0)
    plane = tsne.fit_transform(features.float().cpu().numpy())
    few = len(class_names) <= MOST_COLOURS
    with figure_at(path, 6 if few else 8, 5 if few else 7) as figure:
        axes = figure.subplots()
        for index, name in enumerate(class_names):
            places = plane[(labels == index).cpu().numpy()]
            if not len(places):
                continue
            # Neighbours in the list of classes are far apart in the circle of colours.
            hue = index * 0.618 % 1
            colour = tab10(index) if few else hsv_to_rgb((hue, 0.7, 0.85))
            axes.scatter(*places.T, s=10 if few else 5, color=colour, label=name, linewidths=0)
            if not few:
                x, y = _middle(places)
                dark, text = hsv_to_rgb((hue, 1.0, 0.5)), name.replace("_", " ")
                box = {"color": "white", "alpha": 0.75, "pad": 0.5, "linewidth": 0}
                axes.text(x, y, text, fontsize=7, ha="center", va="center", color=dark, bbox=box)
        if few:
            axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), markerscale=2)
        without_frame(axes)


def _middle(places: np.ndarray) -> np.ndarray:
    """The place with the least distance to all others: within a group, not between two.

    >>> _middle(np.array([[0.0, 0.0], [0.0, 1.0], [0.0, 1.5], [9.0, 0.0]]))
    array([0., 1.])
    """
    distances = np.linalg.norm(places[:, None] - places, axis=-1).sum(0)
    return places[distances.argmin()]
