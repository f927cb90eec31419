"""Networks and their registry; importing this registers every model."""

from dumlp_pin.models import deep_sets as deep_sets
from dumlp_pin.models import dumlp_pin as dumlp_pin
from dumlp_pin.models import pct as pct
from dumlp_pin.models import point_transformer as point_transformer
from dumlp_pin.models import pointnet as pointnet
from dumlp_pin.models import pointnet2 as pointnet2
from dumlp_pin.models import pooling as pooling
from dumlp_pin.models import set_transformer as set_transformer
from dumlp_pin.models.complexity import count_macs, count_parameters
from dumlp_pin.models.networks import AnomalyDetector, PinClassifier, PinSegmenter, Stage
from dumlp_pin.models.official import load_official
from dumlp_pin.models.registry import create_model, list_models, register_model
from dumlp_pin.models.segmenter import Segmenter

__all__ = [
    "AnomalyDetector",
    "PinClassifier",
    "PinSegmenter",
    "Segmenter",
    "Stage",
    "count_macs",
    "count_parameters",
    "create_model",
    "list_models",
    "load_official",
    "register_model",
]
