"""One number a set."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from torch import Tensor

from dumlp_pin.estimators.base import SetEstimator, pin_network
from dumlp_pin.models import PinClassifier
from dumlp_pin.sets import SetBatch
from dumlp_pin.tables import ColumnSets


class SetRegressor(RegressorMixin, SetEstimator):
    """Estimates a number for each set: DuMLP-Pin behind the methods of scikit-learn.

    >>> random = np.random.default_rng(0)
    >>> X = [random.normal(size=(random.integers(10, 30), 2)) for _ in range(80)]
    >>> y = np.array([one[:, 0].max() for one in X])
    >>> model = SetRegressor(max_epochs=40, random_state=0).fit(X[:60], y[:60])
    >>> float(model.score(X[60:], y[60:])) > 0.5
    True
    """

    def predict(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """(B,) the estimate for each set."""
        sets = self._read(X, mask)
        outputs = self._run(sets, lambda network, part: network(part)[:, 0].double())
        return outputs.numpy() * self.scale_ + self.mean_

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, mask: Any = None) -> float:
        """The coefficient of determination: 1 is perfect, 0 no better than the mean."""
        sets, labels = self._read_labelled(X, y, mask)
        return r2_score(labels, self.predict(sets), sample_weight=sample_weight)

    def _learn_target(self, labels: np.ndarray, sets: ColumnSets) -> np.ndarray:
        values = labels.astype(np.float64)
        self.mean_, self.scale_ = float(values.mean()), float(values.std()) or 1.0
        return ((values - self.mean_) / self.scale_).astype(np.float32)

    def _build(self, architecture: dict[str, Any]) -> PinClassifier:
        return pin_network(**architecture, num_outputs=1)

    def _losses(self, network: Any, sets: SetBatch, target: Tensor) -> Tensor:
        return (network(sets)[:, 0] - target).square()

    def _learned(self) -> dict[str, Any]:
        return {"mean": self.mean_, "scale": self.scale_}

    def _restore(self, learned: dict[str, Any]) -> None:
        self.mean_, self.scale_ = learned["mean"], learned["scale"]
