"""DuMLP-Pin: features of whole sets from two small MLPs and a dot product."""

from typing import Any

from dumlp_pin.blocks import MLP, AggregationBlock, BroadcastBlock
from dumlp_pin.kernels.capture import captured
from dumlp_pin.kernels.choose import explain
from dumlp_pin.models import create_model, list_models, load_official
from dumlp_pin.sets import SetBatch

__version__ = "0.1.0"

__all__ = [
    "MLP",
    "AggregationBlock",
    "BroadcastBlock",
    "SetAnomalyDetector",
    "SetBatch",
    "SetClassifier",
    "SetRegressor",
    "captured",
    "create_model",
    "explain",
    "list_models",
    "load_official",
    "load_pretrained",
]


def __getattr__(name: str) -> Any:
    """Imported when asked for: scikit-learn is optional, and trained models know of training."""
    if name == "load_pretrained":
        from dumlp_pin.pretrained import load_pretrained

        return load_pretrained
    if name in ("SetAnomalyDetector", "SetClassifier", "SetRegressor"):
        from dumlp_pin._errors import need

        return getattr(need("dumlp_pin.estimators", "sklearn"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
