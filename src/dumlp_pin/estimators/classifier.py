"""One class a set."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor
from torch.nn import functional as F

from dumlp_pin.estimators.base import SetEstimator, pin_network
from dumlp_pin.models import PinClassifier
from dumlp_pin.sets import SetBatch
from dumlp_pin.tables import ColumnSets


class SetClassifier(ClassifierMixin, SetEstimator):
    """Classifies sets: DuMLP-Pin behind the methods of scikit-learn.

    Beside the parameters of `SetEstimator`, `class_weight` is None, "balanced", or the weight of
    each class.

    >>> random = np.random.default_rng(0)
    >>> y = np.arange(60) % 2  # sets that spread little, and sets that spread much
    >>> X = [random.normal(scale=1 + 2 * label, size=(random.integers(20, 40), 2)) for label in y]
    >>> model = SetClassifier(max_epochs=30, random_state=0).fit(X[:40], y[:40])
    >>> float(model.score(X[40:], y[40:])) > 0.8
    True
    """

    def __init__(
        self,
        *,
        set_column: str | None = None,
        target: str | None = None,
        class_weight: Any = None,
        width: int | None = None,
        batch_size: int | None = None,
        max_epochs: int | None = None,
        learning_rate: float = 0.01,
        dropout: float = 0.2,
        validation_fraction: float = 0.15,
        patience: float = 0.3,
        random_state: Any = None,
        device: str | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            set_column=set_column,
            target=target,
            width=width,
            batch_size=batch_size,
            max_epochs=max_epochs,
            learning_rate=learning_rate,
            dropout=dropout,
            validation_fraction=validation_fraction,
            patience=patience,
            random_state=random_state,
            device=device,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def predict(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """(B,) the most likely class of each set."""
        likely = self.predict_proba(X, mask=mask).argmax(1)
        return self.classes_[likely]

    def predict_proba(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """(B, classes), in the order of `classes_`."""
        sets = self._read(X, mask)
        return self._run(sets, lambda network, part: network(part).double().softmax(1)).numpy()

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, mask: Any = None) -> float:
        """The part of the sets that is classified right."""
        sets, labels = self._read_labelled(X, y, mask)
        return accuracy_score(labels, self.predict(sets), sample_weight=sample_weight)

    def _learn_target(self, labels: np.ndarray, sets: ColumnSets) -> np.ndarray:
        check_classification_targets(labels)
        self.classes_, target = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs sets of two classes or more, all are of 1 class, "
                f"{self.classes_.tolist()[0]!r}"
            )
        return target.astype(np.int64)

    def _class_weights(self, target: np.ndarray) -> np.ndarray:
        weight = self.class_weight
        labels = self.classes_[target]
        each = compute_class_weight(weight, classes=self.classes_, y=labels)
        return each[target].astype(np.float32)

    def _strata(self, target: np.ndarray) -> np.ndarray:
        return target

    def _architecture(self, in_features: int, num_sets: int) -> dict[str, Any]:
        shared = super()._architecture(in_features, num_sets)
        return shared | {"num_outputs": len(self.classes_)}

    def _build(self, architecture: dict[str, Any]) -> PinClassifier:
        return pin_network(**architecture)

    def _losses(self, network: Any, sets: SetBatch, target: Tensor) -> Tensor:
        return F.cross_entropy(network(sets), target, reduction="none")

    def _learned(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist(), "dtype": self.classes_.dtype.str}

    def _restore(self, learned: dict[str, Any]) -> None:
        self.classes_ = np.array(learned["classes"], dtype=learned["dtype"])
