"""A fitted estimator as one network, from the columns of a table to its answer."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from dumlp_pin.estimators.base import SetEstimator
from dumlp_pin.estimators.classifier import SetClassifier
from dumlp_pin.estimators.encoding import Numbers
from dumlp_pin.estimators.regressor import SetRegressor
from dumlp_pin.functional import set_softmax


class FittedNetwork(nn.Module):
    """What an estimator does, for padded sets of plain numbers: x (B, N, columns), mask (B, N).

    A missing number is NaN. A word is its place among those that `fit` saw, or -1. The answer is
    probabilities (B, classes), estimates (B,), or the probability (B, N) of each element to be odd.

    >>> import numpy as np
    >>> from dumlp_pin import SetRegressor
    >>> sets = [np.ones((1, 2)), np.zeros((3, 2)), np.ones((2, 2))]
    >>> estimator = SetRegressor(max_epochs=1, width=2).fit(sets, [1.0, 0.0, 1.0])
    >>> network = FittedNetwork(estimator).eval()
    >>> network(torch.ones(1, 2, 2), torch.tensor([[True, True]])).shape
    torch.Size([1])
    """

    def __init__(self, estimator: SetEstimator) -> None:
        super().__init__()
        self.network = copy.deepcopy(estimator.network_)
        self.columns = tuple(estimator.encoder_.columns.values())
        self.size = estimator.encoder_.size
        self.in_features = len(self.columns)
        self.estimator: Any = estimator
        self.created_as = (type(estimator).__name__, {})  # what an exported file calls it

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        dtype = next(self.network.parameters()).dtype
        wide = x.to(torch.float64)  # a mean may be far larger than what lies around it
        features = []
        for column, value in zip(self.columns, wide.unbind(-1), strict=True):
            if isinstance(column, Numbers):
                missing = value.isnan()
                standard = (value - column.mean) / column.scale
                features.append(torch.where(missing, 0, standard))
                if column.knots:
                    features.append(torch.where(missing, 0, _rank(value, column)))
                if column.may_miss:
                    features.append(missing.to(torch.float64))
            else:
                features.extend((value == place).to(torch.float64) for place in range(column.width))
        if self.size is not None:
            logarithm = mask.sum(1, keepdim=True).to(torch.float64).log()
            features.append(((logarithm - self.size.mean) / self.size.scale).expand_as(mask))
            if self.size.knots:
                features.append(_rank(logarithm, self.size).expand_as(mask))
        return self._answer(self.network(torch.stack(features, -1).to(dtype), mask), mask)

    def _answer(self, output: Tensor, mask: Tensor) -> Tensor:
        if isinstance(self.estimator, SetRegressor):
            return output[:, 0] * self.estimator.scale_ + self.estimator.mean_
        if isinstance(self.estimator, SetClassifier):
            return output.softmax(1)
        return set_softmax(output[..., None], mask).squeeze(-1)


def _rank(value: Tensor, column: Numbers) -> Tensor:
    """As `np.interp`, of plain operators: each step between two knots is made in part or whole."""
    knots, ranks = (value.new_tensor(numbers) for numbers in (column.knots, column.ranks))
    parts = ((value[..., None] - knots[:-1]) / knots.diff()).clamp(0, 1)
    return ranks[0] + (parts * ranks.diff()).sum(-1)


def describe(estimator: SetEstimator) -> dict[str, Any]:
    """What x (B, N, columns) holds and what comes out, for those who only have the file."""
    columns = []
    for name, column in estimator.encoder_.columns.items():
        if isinstance(column, Numbers):
            columns.append(f"{name}: a number, NaN where it is missing")
        else:
            words = ", ".join(f"{place} {word}" for place, word in enumerate(column.words))
            columns.append(f"{name}: {words}, -1 for another")
    return {
        "class_names": [str(name) for name in getattr(estimator, "classes_", ())],
        "expects": "; ".join(columns),
        "output": "estimates" if isinstance(estimator, SetRegressor) else "probabilities",
    }
