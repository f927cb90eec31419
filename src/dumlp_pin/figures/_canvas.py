"""What all pictures share: a figure that never needs a screen, and a file written whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dumlp_pin._errors import need
from dumlp_pin._files import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
FEW = 64  # colours of a picture of points, which have no smooth areas


@contextmanager
def figure_at(
    path: Path, width: float, height: float, *, of_points: bool = False
) -> Iterator[Figure]:
    """A figure of so many inches that ends as a PNG at `path`, with few colours if `of_points`.

    Thousands of points whose colours all differ make a file that nobody wants in a page.
    """
    figure = need("matplotlib.figure", "figures").Figure(
        figsize=(width, height), layout="constrained"
    )
    yield figure
    with written_whole(path) as draft:
        figure.savefig(draft, format="png", dpi=DPI)
        if of_points:
            image = need("PIL.Image", "figures")
            with image.open(draft) as picture:
                few = picture.convert("RGB").quantize(
                    FEW, image.Quantize.MAXCOVERAGE, dither=image.Dither.NONE
                )
            few.save(draft, format="png", optimize=True)


def panel(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes without a frame at a place in inches from the top left corner, instead of a layout."""
    figure.set_layout_engine("none")
    across, down = figure.get_size_inches()
    place = (left / across, 1 - (top + height) / down, width / across, height / down)
    return without_frame(figure.add_axes(place))


def caption(figure: Figure, text: str, left: float, top: float, **style: Any) -> None:
    """A line of text with its middle so many inches from the left, its top so many from above."""
    across, down = figure.get_size_inches()
    style = {"fontsize": 8} | style
    figure.text(left / across, 1 - top / down, text, ha="center", va="top", **style)


def without_frame(axes: Axes) -> Axes:
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return axes
