"""Features of sets in the plane, as in the paper's picture of MNIST."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from dumlp_pin._errors import need
from dumlp_pin.figures._canvas import figure_at


def draw_tsne(path: Path, features: Tensor, labels: Tensor, class_names: Sequence[str]) -> None:
    """t-SNE of features (B, F), a colour for each of the classes `labels` (B,), at most ten."""
    colours = need("matplotlib", "figures").colormaps["tab10"]
    tsne = need("sklearn.manifold", "figures").TSNE(init="pca", random_state=0)
    plane = tsne.fit_transform(features.float().cpu().numpy())
    with figure_at(path, 6, 5) as figure:
        axes = figure.subplots()
        for index, name in enumerate(class_names):
            x, y = plane[(labels == index).cpu().numpy()].T
            axes.scatter(x, y, s=10, color=colours(index), label=name, linewidths=0)
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), markerscale=2)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
