"""What all pictures share: a figure that never needs a screen, and a file written whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dumlp_pin._errors import need
from dumlp_pin._files import written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@contextmanager
def figure_at(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure of so many inches that ends as a PNG at `path`."""
    figure = need("matplotlib.figure", "figures").Figure(
        figsize=(width, height), layout="constrained"
    )
    yield figure
    with written_whole(path) as draft:
        figure.savefig(draft, format="png", dpi=150)
