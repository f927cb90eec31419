"""A fitted estimator, saved and loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from dumlp_pin import SetAnomalyDetector, SetClassifier, SetRegressor
from dumlp_pin.estimators import SetEstimator
from tests.estimators.sets import odd_ones

X, Y = odd_ones(30)


def fitted(kind: type[SetEstimator], y: Any = Y, **parameters: Any) -> Any:
    return kind(width=3, max_epochs=1, random_state=0, **parameters).fit(X, y)


@pytest.mark.parametrize("kind", [SetClassifier, SetRegressor, SetAnomalyDetector])
def test_what_is_loaded_is_what_was_saved(kind: type[SetEstimator], tmp_path: Path) -> None:
    model: Any = fitted(kind)
    model.save(tmp_path)
    for loader in (kind, SetEstimator):
        again: Any = loader.load(tmp_path)
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
        assert again.get_params() == model.get_params()
        assert again.history_ == model.history_
        assert type(again) is kind
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors"]


def test_classes_and_their_weights_keep_their_kinds(tmp_path: Path) -> None:
    for names in (np.array(["a", "b"]), np.array([False, True]), np.array([2, 10])):
        weights = dict(zip(names.tolist(), (1.0, 3.0), strict=True))
        model = fitted(SetClassifier, names[Y % 2], class_weight=weights)
        model.save(tmp_path)
        again = SetClassifier.load(tmp_path)
        assert again.class_weight == weights
        assert again.classes_.dtype == names.dtype
        np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_columns_of_words_come_back(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {"id": np.arange(60) // 2, "kind": ["a", "b", None] * 20, "y": np.arange(60) // 2 % 2}
    )
    model = SetClassifier(set_column="id", target="y", width=3, max_epochs=1, random_state=0)
    model.fit(table).save(tmp_path)
    again = SetClassifier.load(tmp_path)
    np.testing.assert_array_equal(again.predict_proba(table), model.predict_proba(table))


def test_numbers_of_a_search_and_a_generator_can_be_saved(tmp_path: Path) -> None:
    model = fitted(SetRegressor, learning_rate=np.float64(0.01))
    model.set_params(random_state=np.random.RandomState(0), width=np.int64(3)).save(tmp_path)
    again = SetRegressor.load(tmp_path)
    assert (again.learning_rate, again.width, again.random_state) == (0.01, 3, None)


def test_saving_again_leaves_nothing_of_before(tmp_path: Path) -> None:
    fitted(SetRegressor).save(tmp_path)
    before = set(tmp_path.glob("*.safetensors"))
    other = SetRegressor(width=4, max_epochs=1).fit(X, Y)
    other.save(tmp_path)
    (after,) = tmp_path.glob("*.safetensors")
    assert after not in before
    assert json.loads((tmp_path / "model.json").read_text())["weights"] == after.name
    assert load_file(after).keys() == other.network_.state_dict().keys()


def test_folders_that_hold_no_estimator_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="This SetRegressor instance is not fitted yet"):
        SetRegressor().save(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no estimator: there is no"):
        SetEstimator.load(tmp_path)
    fitted(SetRegressor).save(tmp_path)
    with pytest.raises(ValueError, match="holds a SetRegressor, not a SetClassifier"):
        SetClassifier.load(tmp_path)
    (weights,) = tmp_path.glob("*.safetensors")
    weights.write_bytes(b"cut off")
    broken = "holds no estimator that can be read: "
    with pytest.raises(ValueError, match=broken):
        SetRegressor.load(tmp_path)
    described = json.loads((tmp_path / "model.json").read_text())
    changes: list[dict[str, Any]] = [{"format": 99}, {"encoder": {}}, {"parameters": {"no": 1}}]
    fitted(SetRegressor).save(tmp_path)  # the weights are whole again
    for text in ("{", "[]", "{}", *(json.dumps(described | change) for change in changes)):
        (tmp_path / "model.json").write_text(text)
        with pytest.raises(ValueError, match=broken) as caught:
            SetEstimator.load(tmp_path)
        assert "\n" not in str(caught.value)
