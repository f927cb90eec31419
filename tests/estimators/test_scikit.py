"""scikit-learn's own checks, and the tools of scikit-learn that estimators are put into."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from dumlp_pin import SetAnomalyDetector, SetClassifier, SetRegressor
from dumlp_pin.estimators import SetEstimator
from tests.estimators.sets import odd_ones, rings_and_blobs


class _RowsAsSets(SetEstimator):
    """The checks have tables (n, F) as data: each row becomes a set of one element.

    Nothing else is changed, so that what they find is true of the estimators.
    """

    def _open(self, X: Any, *args: Any, **named: Any) -> Any:
        rows = np.asarray(X)
        return super()._open(rows[:, None] if rows.ndim == 2 else X, *args, **named)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        tags.input_tags.three_d_array = False
        return tags


class RowClassifier(SetClassifier, _RowsAsSets):
    pass


class RowRegressor(SetRegressor, _RowsAsSets):
    pass


ROW_KINDS: list[Any] = [RowClassifier, RowRegressor]
_NOT_SETS = "an error names the forms that sets have, which this is none of"
MAKE_NO_SENSE = {
    "check_estimator_sparse_tag": _NOT_SETS,
    "check_estimator_sparse_array": _NOT_SETS,
    "check_estimator_sparse_matrix": _NOT_SETS,
    "check_fit2d_predict1d": _NOT_SETS,
    "check_sample_weight_equivalence_on_dense_data": (
        "a weight of two is one step twice as large, and a set given twice is in two batches"
    ),
}


@parametrize_with_checks(
    [kind(width=4, batch_size=64, max_epochs=8, learning_rate=0.05) for kind in ROW_KINDS],
    expected_failed_checks=lambda estimator: MAKE_NO_SENSE,
)
def test_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("kind", [SetClassifier, SetRegressor, SetAnomalyDetector])
def test_a_clone_has_the_same_parameters_and_nothing_learned(kind: type[SetEstimator]) -> None:
    X, y = odd_ones(30)
    fitted = kind(width=3, max_epochs=1, random_state=5).fit(X, y)
    copy: Any = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert not hasattr(copy, "network_")


@pytest.mark.parametrize("kind", [SetClassifier, SetRegressor, SetAnomalyDetector])
def test_a_pickle_predicts_the_same_and_names_no_class_of_pytorch(
    kind: type[SetEstimator],
) -> None:
    X, y = odd_ones(30)
    fitted: Any = kind(width=3, max_epochs=1, random_state=5).fit(X, y)
    pickled = pickle.dumps(fitted)
    assert b"torch" not in pickled
    np.testing.assert_array_equal(pickle.loads(pickled).predict(X), fitted.predict(X))


def test_a_search_over_parameters_finds_the_network_that_learns() -> None:
    X, y = rings_and_blobs(120)
    X = [one - one.mean(0) for one in X]
    never = 1e-9
    search = GridSearchCV(
        SetClassifier(max_epochs=20, random_state=0), {"learning_rate": [never, 0.01]}, cv=2
    ).fit(X, y)
    assert search.best_params_ == {"learning_rate": 0.01}
    assert search.best_score_ > 0.8


def test_padded_arrays_are_cross_validated_too() -> None:
    X, y = odd_ones(60)
    padded = np.stack(X)
    same = cross_val_score(SetRegressor(max_epochs=2, random_state=0), X, y, cv=2)
    again = cross_val_score(SetRegressor(max_epochs=2, random_state=0), padded, y, cv=2)
    np.testing.assert_array_equal(same, again)


def test_in_a_pipeline_behind_what_makes_sets_and_before_what_takes_features() -> None:
    X, y = rings_and_blobs(80)
    moved = FunctionTransformer(lambda sets: [one - one.mean(0) for one in sets])
    model = make_pipeline(moved, SetClassifier(max_epochs=25, learning_rate=0.01, random_state=0))
    assert model.fit(X[:50], y[:50]).score(X[50:], y[50:]) > 0.8

    features = SetClassifier(width=4, max_epochs=25, learning_rate=0.01, random_state=0)
    model = make_pipeline(moved, features, LogisticRegression(max_iter=1000))
    assert model.fit(X[:50], y[:50]).score(X[50:], y[50:]) > 0.8
    assert model[:2].transform(X).shape == (80, 16)
