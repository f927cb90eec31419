"""What the three estimators promise, each as a user would see it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import dumlp_pin
from dumlp_pin import SetAnomalyDetector, SetClassifier, SetRegressor
from dumlp_pin.estimators import SetEstimator
from tests.estimators.sets import odd_ones, rings_and_blobs

KINDS = [SetClassifier, SetRegressor, SetAnomalyDetector]
Kind = type[SetEstimator]


def quick(kind: Kind, **parameters: Any) -> Any:
    defaults: dict[str, Any] = {"width": 3, "max_epochs": 2, "random_state": 0}
    return kind(**defaults | parameters)


@pytest.fixture(scope="module")
def shapes() -> tuple[list[np.ndarray], np.ndarray]:
    X, y = rings_and_blobs(120)
    return [one - one.mean(0) for one in X], y


@pytest.fixture(scope="module")
def classifier(shapes: Any) -> SetClassifier:
    X, y = shapes
    return SetClassifier(max_epochs=25, learning_rate=0.01, random_state=0).fit(X[:90], y[:90])


# Learning.


def test_a_classifier_learns(classifier: SetClassifier, shapes: Any) -> None:
    X, y = shapes
    assert classifier.score(X[90:], y[90:]) > 0.85
    chances = classifier.predict_proba(X)
    np.testing.assert_allclose(chances.sum(1), 1)
    np.testing.assert_array_equal(chances.argmax(1), classifier.predict(X))


def test_a_regressor_learns_on_the_scale_of_y() -> None:
    random = np.random.default_rng(0)
    X = [random.normal(size=(random.integers(5, 15), 1)) for _ in range(150)]
    y = np.array([1000 + 50 * one.max() for one in X])
    model = SetRegressor(max_epochs=30, learning_rate=0.01, random_state=0).fit(X[:100], y[:100])
    assert model.score(X[100:], y[100:]) > 0.8
    assert 1000 < model.predict(X).mean() < 1150


def test_a_detector_learns_and_its_chances_belong_to_elements() -> None:
    X, y = odd_ones(150)
    model = SetAnomalyDetector(max_epochs=40, learning_rate=0.01, random_state=0)
    model.fit(X[:110], y[:110])
    assert model.score(X[110:], y[110:]) > 0.8
    X[0] = X[0][:4]
    chances = model.predict_proba(X)
    assert [len(one) for one in chances] == [len(one) for one in X]
    assert all(one.sum() == pytest.approx(1) for one in chances)
    assert [one.argmax() for one in chances] == model.predict(X).tolist()


def test_a_set_is_no_sequence_and_is_by_itself(classifier: SetClassifier, shapes: Any) -> None:
    X, _ = shapes
    chances = classifier.predict_proba(X[:3])
    turned = [one[::-1] for one in X[:3]]
    np.testing.assert_allclose(classifier.predict_proba(turned), chances, atol=1e-6)
    np.testing.assert_allclose(classifier.predict_proba(X[1:2]), chances[1:2], atol=1e-6)


def test_features_are_of_the_width_asked_for(shapes: Any) -> None:
    X, y = shapes
    features = quick(SetClassifier, width=5).fit_transform(X, y)
    assert (features.shape, features.dtype) == ((120, 25), np.float32)


# Repeating, and telling classes and sets apart.


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_repeats_by_its_random_state_alone(kind: Kind) -> None:
    X, y = odd_ones(60)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = quick(kind, random_state=7).fit(X, y)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    two = quick(kind, random_state=np.random.RandomState(7)).fit(X, y)
    other = quick(kind, random_state=8).fit(X, y)
    assert one.history_ == two.history_
    np.testing.assert_array_equal(one.transform(X), two.transform(X))
    assert one.history_ != other.history_


def test_classes_may_have_any_names() -> None:
    X, y = rings_and_blobs(30)
    for names in (np.array(["blob", "ring"]), np.array(["b", "r"], object), np.array([5, -3])):
        model = quick(SetClassifier).fit(X, names[y])
        assert set(model.predict(X)) <= set(names)
        assert model.classes_.tolist() == sorted(names.tolist())


def test_balanced_weights_find_the_rare_class() -> None:
    X, y = rings_and_blobs(200)
    X = [one - one.mean(0) for one in X]
    kept = np.flatnonzero((y == 0) | (np.arange(200) % 20 == 1))  # ten rings
    X, y = [X[index] for index in kept], y[kept]
    common = {"width": 4, "max_epochs": 6, "random_state": 0}
    plain = SetClassifier(**common).fit(X, y)
    weighted = SetClassifier(**common, class_weight={0: 1, 1: 50}).fit(X, y)
    assert weighted.predict(X).sum() > plain.predict(X).sum()
    balanced = SetClassifier(**common, class_weight="balanced").fit(X, y)
    assert balanced.predict_proba(X)[:, 1].mean() > plain.predict_proba(X)[:, 1].mean()


def test_the_labels_of_sets_without_weight_do_not_matter() -> None:
    X, y = rings_and_blobs(60)
    counts = np.arange(60) < 30
    models = [
        quick(SetClassifier, validation_fraction=0).fit(X, labels, sample_weight=counts)
        for labels in (y, np.where(counts, y, 1 - y))
    ]
    one, other = (model.predict_proba(X) for model in models)
    np.testing.assert_array_equal(one, other)
    unweighted = quick(SetClassifier, validation_fraction=0).fit(X, y)
    assert not np.array_equal(unweighted.predict_proba(X), one)


# Tables.


def _table(X: list[np.ndarray], y: np.ndarray) -> pd.DataFrame:
    """Rows of all sets, shuffled, with gaps and a column of words."""
    sizes = [len(one) for one in X]
    table = pd.DataFrame(np.concatenate(X), columns=["east", "north"])
    table["shape"] = np.repeat(np.arange(len(X)), sizes)
    table["label"] = np.repeat(np.where(y, "ring", "blob"), sizes)
    table["colour"] = np.where(table.east > 0, "red", "blue")
    table.loc[::7, "east"] = np.nan
    return table.sample(frac=1, random_state=0).sort_values("shape", kind="stable")


def test_a_table_is_learned_from_and_scored_by_the_names_of_its_columns(shapes: Any) -> None:
    X, y = shapes
    table = _table(X, y)
    model = SetClassifier(
        set_column="shape", target="label", max_epochs=25, learning_rate=0.01, random_state=0
    )
    model.fit(table[table["shape"] < 90])
    new = table[table["shape"] >= 90]
    assert model.score(new) > 0.8
    # The label is no feature; other columns and another order of them change nothing.
    more = new.drop(columns="label").assign(note="?")[["note", "colour", "shape", "north", "east"]]
    np.testing.assert_array_equal(model.predict(more), model.predict(new))


def test_a_detector_reads_the_odd_row_from_a_column_of_bools() -> None:
    X, y = odd_ones(40)
    table = pd.DataFrame(np.concatenate(X), columns=["x0", "x1"])
    table["id"] = np.arange(len(table)) // 6
    table["odd"] = np.arange(len(table)) % 6 == np.repeat(y, 6)
    model = quick(SetAnomalyDetector, set_column="id", target="odd").fit(table)
    np.testing.assert_array_equal(
        model.predict(table), quick(SetAnomalyDetector).fit(X, y).predict(X)
    )
    table.loc[0:5, "odd"] = True
    with pytest.raises(ValueError, match="'odd' marks one row of each set, and 6 of set 0"):
        model.fit(table)


# Errors.


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_out_of_range_are_named(kind: Kind) -> None:
    X, y = odd_ones(12)
    for parameters, message in (
        ({"width": 0}, "width is None or a positive integer, got 0"),
        ({"batch_size": 2.5}, "batch_size is None or a positive integer, got 2.5"),
        ({"learning_rate": 0}, "learning_rate is positive, got 0"),
        ({"patience": float("nan")}, "patience is positive, got nan"),
        ({"patience": None}, "patience is a number, got None"),
        ({"learning_rate": "fast"}, "learning_rate is a number, got 'fast'"),
        ({"width": True}, "width is None or a positive integer, got True"),
        ({"dropout": 1}, "dropout is at least 0 and below 1, got 1"),
        ({"device": "gpu"}, "unknown device 'gpu': expected one such as cpu or cuda:1"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            quick(kind, **parameters).fit(X, y)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_error_of_one_line() -> None:
    X, y = odd_ones(12)
    with pytest.raises(ValueError, match="cuda was asked for, but PyTorch sees no GPU here"):
        quick(SetClassifier, device="cuda").fit(X, y)


def test_labels_that_do_not_fit_the_sets_are_errors_of_one_line() -> None:
    X, y = rings_and_blobs(30)
    cases: list[tuple[Any, Any, Any, str]] = [
        (SetClassifier, y[:9], ValueError, "30 sets need as many labels in y, got 9"),
        (SetClassifier, None, ValueError, "requires y to be passed, but the target y is None"),
        (SetClassifier, np.zeros(30), ValueError, "sets of two classes or more, .* 1 class, 0.0"),
        (SetRegressor, np.where(y, np.nan, 0), ValueError, "Input y contains NaN"),
        (SetAnomalyDetector, y + 0.5, TypeError, "y is the position of the odd element"),
        (SetAnomalyDetector, y + 90, ValueError, r"set 0 has \d+ elements, y has position 90"),
    ]
    for kind, labels, error, message in cases:
        with pytest.raises(error, match=message):
            quick(kind).fit(X, labels)
    with pytest.raises(ValueError, match="labels are given twice, by y and by the column 'label'"):
        quick(SetClassifier, set_column="shape", target="label").fit(_table(X, y), y)
    with pytest.raises(ValueError, match=r"sample_weight has one number a set, shape \(30,\)"):
        quick(SetClassifier).fit(X, y, sample_weight=[1.0])
    with pytest.raises(ValueError, match="a negative number, NaN, or zero for all sets"):
        quick(SetClassifier).fit(X, y, sample_weight=np.zeros(30))


def test_sets_that_fit_never_saw_the_like_of_are_errors(classifier: SetClassifier) -> None:
    with pytest.raises(ValueError, match="X has 3 features, but SetClassifier is expecting 2"):
        classifier.predict([np.ones((4, 3))])
    with pytest.raises(ValueError, match="set 0 is empty"):
        classifier.predict([np.empty((0, 2))])


def test_a_rate_that_ends_in_infinity_says_so() -> None:
    X, y = rings_and_blobs(30)
    with pytest.raises(FloatingPointError, match=r"the loss is nan in epoch .: try learning_rate="):
        quick(SetRegressor, learning_rate=1e38, max_epochs=9).fit(X, y)


def test_what_the_package_does_not_have_is_still_an_attribute_error() -> None:
    wrong = "SetClasifier"
    with pytest.raises(AttributeError, match="has no attribute 'SetClasifier'"):
        getattr(dumlp_pin, wrong)
    assert dumlp_pin.SetClassifier is SetClassifier
