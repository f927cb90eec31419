"""Which element of a set does not belong."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.metrics import accuracy_score
from torch import Tensor, nn
from torch.nn import functional as F

from dumlp_pin._layout import Sets
from dumlp_pin.blocks import MLP, AggregationBlock
from dumlp_pin.estimators.base import BRANCHES, SetEstimator
from dumlp_pin.functional import set_softmax
from dumlp_pin.models import AnomalyDetector
from dumlp_pin.sets import SetBatch
from dumlp_pin.tables import ColumnSets, shown


class OddOneNetwork(nn.Module):
    """A paper's detector, whose elements are vectors that an MLP makes of the features.

    >>> OddOneNetwork(3, width=4, dropout=0.1)(torch.rand(2, 10, 3)).shape
    torch.Size([2, 10])
    """

    def __init__(self, in_features: int, width: int, dropout: float) -> None:
        super().__init__()
        element = 8 * width
        self.embed = MLP((in_features, 4 * width, element))
        extractor = AggregationBlock(element, [(4 * width, width)] * 2, BRANCHES, dropout=dropout)
        self.detector = AnomalyDetector(extractor, width=element)

    def forward_features(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        """(B, width * width): the feature of each set."""
        return self.detector.forward_features(self.embed(x, mask), mask)

    def forward(self, x: Sets, mask: Tensor | None = None) -> Sets:
        """Logits over the elements of each set."""
        return self.detector(self.embed(x, mask), mask)


class SetAnomalyDetector(SetEstimator):
    """Finds the odd element of each set, as in the paper: it learns from sets where that is known.

    `y` is the position of the odd element in its set, counted from 0. In a table, `target` is a
    column that is true, or 1, in one row of each set.

    This is not outlier detection in the sense of scikit-learn, which needs no labels.

    >>> random = np.random.default_rng(0)
    >>> y = random.integers(8, size=100)
    >>> X = random.normal(size=(100, 1, 2)) + random.normal(scale=0.1, size=(100, 8, 2))
    >>> X[np.arange(100), y] += 1  # sets of eight that stand close, but for one
    >>> model = SetAnomalyDetector(max_epochs=40, random_state=0).fit(X[:80], y[:80])
    >>> float(model.score(X[80:], y[80:])) > 0.5
    True
    """

    def predict(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """(B,) the position of the odd element in each set."""
        return np.array([one.argmax() for one in self.predict_proba(X, mask=mask)])

    def predict_proba(self, X: Any, *, mask: Any = None) -> list[np.ndarray]:
        """For each set the chances (N_b,) of its elements to be the odd one."""
        sets = self._read(X, mask)
        chances = self._run(
            sets, lambda network, part: set_softmax(network(part).to(torch.float64)).rows[:, 0]
        )
        return np.split(chances.numpy(), sets.offsets[1:-1])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, mask: Any = None) -> float:
        """The part of the sets whose odd element is found."""
        sets, labels = self._read_labelled(X, y, mask)
        return accuracy_score(labels, self.predict(sets), sample_weight=sample_weight)

    def _labels_of_rows(self, sets: ColumnSets) -> np.ndarray:
        assert sets.target is not None
        rows = np.flatnonzero(sets.target)
        owner = np.searchsorted(sets.offsets, rows, side="right") - 1
        marked = np.bincount(owner, minlength=len(sets))
        if (marked != 1).any():
            b = int((marked != 1).argmax())
            raise ValueError(
                f"column {self.target!r} marks one row of each set, and {marked[b]} of set "
                f"{shown(sets.ids[b])}"
            )
        return rows - sets.offsets[:-1]

    def _learn_target(self, labels: np.ndarray, sets: ColumnSets) -> np.ndarray:
        if not np.issubdtype(labels.dtype, np.integer):
            raise TypeError(f"y is the position of the odd element, an integer; got {labels.dtype}")
        wrong = (labels < 0) | (labels >= sets.sizes)
        if wrong.any():
            b = int(wrong.argmax())
            raise ValueError(f"set {b} has {sets.sizes[b]} elements, y has position {labels[b]}")
        return labels.astype(np.int64)

    def _build(self, architecture: dict[str, Any]) -> OddOneNetwork:
        return OddOneNetwork(**architecture)

    def _losses(self, network: Any, sets: SetBatch, target: Tensor) -> Tensor:
        logits, mask = network(sets).to_padded()
        return F.cross_entropy(
            logits[..., 0].masked_fill(~mask, -torch.inf), target, reduction="none"
        )
