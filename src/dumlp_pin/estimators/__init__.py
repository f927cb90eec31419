"""The scikit-learn face: estimators that take sets, whatever form they come in."""

from dumlp_pin.estimators.anomaly import SetAnomalyDetector
from dumlp_pin.estimators.base import SetEstimator
from dumlp_pin.estimators.classifier import SetClassifier
from dumlp_pin.estimators.regressor import SetRegressor

__all__ = [
    "SetAnomalyDetector",
    "SetClassifier",
    "SetEstimator",
    "SetRegressor",
]
