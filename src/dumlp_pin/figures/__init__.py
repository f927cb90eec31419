"""Pictures of results; they need the extra `figures`."""

from dumlp_pin.figures.activations import draw_activations
from dumlp_pin.figures.anomalies import draw_anomalies
from dumlp_pin.figures.attention import draw_attention
from dumlp_pin.figures.broadcasts import draw_broadcasts
from dumlp_pin.figures.confusion import draw_confusion
from dumlp_pin.figures.costs import draw_costs
from dumlp_pin.figures.curves import draw_curves
from dumlp_pin.figures.parts import draw_parts
from dumlp_pin.figures.retrieval import draw_retrieval
from dumlp_pin.figures.tsne import draw_tsne

__all__ = [
    "draw_activations",
    "draw_anomalies",
    "draw_attention",
    "draw_broadcasts",
    "draw_confusion",
    "draw_costs",
    "draw_curves",
    "draw_parts",
    "draw_retrieval",
    "draw_tsne",
]
