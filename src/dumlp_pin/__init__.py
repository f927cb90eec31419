"""DuMLP-Pin: features of whole sets from two small MLPs and a dot product."""

from dumlp_pin.blocks import MLP, AggregationBlock, BroadcastBlock
from dumlp_pin.models import create_model, list_models, load_official
from dumlp_pin.sets import SetBatch

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "AggregationBlock",
    "BroadcastBlock",
    "SetBatch",
    "create_model",
    "list_models",
    "load_official",
]
