"""Pictures of results; they need the extra `figures`."""

from dumlp_pin.figures.confusion import draw_confusion
from dumlp_pin.figures.curves import draw_curves
from dumlp_pin.figures.tsne import draw_tsne

__all__ = ["draw_confusion", "draw_curves", "draw_tsne"]
