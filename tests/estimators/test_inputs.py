from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from dumlp_pin import SetBatch
from dumlp_pin.estimators.inputs import read_sets

SETS = [np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0, 6.0]])]
ROWS = np.concatenate(SETS)
PADDED = np.array([SETS[0], [[5.0, 6.0], [np.nan, np.inf]]])
MASK = np.array([[True, True], [True, False]])

FORMS: dict[str, tuple[Any, Any]] = {
    "arrays": (SETS, None),
    "tensors": ([torch.from_numpy(one).float().requires_grad_() for one in SETS], None),
    "lists": ([one.tolist() for one in SETS], None),
    "integers": ([one.astype(np.int8) for one in SETS], None),
    "padded": (PADDED, MASK),
    "padded tensor": (torch.from_numpy(PADDED), torch.from_numpy(MASK)),
    "set batch": (SetBatch.from_list([torch.from_numpy(one) for one in SETS]), None),
    "table": (pd.DataFrame({"id": [7, 7, 8], "x0": ROWS[:, 0], "x1": ROWS[:, 1]}), None),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_sets_is_read_alike(form: str) -> None:
    x, mask = FORMS[form]
    sets = read_sets(x, mask, set_column="id")
    assert sets.offsets.tolist() == [0, 2, 3]
    assert list(sets.columns) == ["x0", "x1"]
    np.testing.assert_array_equal(np.stack(list(sets.columns.values()), 1), ROWS)


def test_an_object_array_of_sets_is_a_list_of_them() -> None:
    sets = np.empty(2, dtype=object)
    sets[:] = SETS
    assert read_sets(sets).sizes.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ([], ValueError, "expected at least one set, got none"),
        ([SETS[0], np.empty((0, 2))], ValueError, "set 1 is empty; every set needs an element"),
        ([SETS[0], np.ones((1, 3))], ValueError, r"the same number of features, got \[2, 3\]"),
        ([SETS[0], np.ones(3)], ValueError, r"set 1 is not \(N, F\), it has shape \(3,\)"),
        ([np.array([["a", "b"]])], ValueError, "set 0 is not of numbers: could not convert"),
        (np.ones((4, 2)), ValueError, r"a list of arrays .* got an array of shape \(4, 2\)"),
        (np.ones((4, 2, 0)), ValueError, r"0 feature\(s\) \(shape=\(8, 0\)\)"),
        ("basket.csv", TypeError, "sets are a list of arrays .*; got str"),
        (pd.DataFrame({"id": [1]}), ValueError, "a table needs set_column"),
        ([np.ones((2, 2), complex)], ValueError, "Complex data not supported: set 0 is complex128"),
    ],
)
def test_what_is_no_sets_is_an_error_of_one_line(x: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        read_sets(x)
    assert "\n" not in str(caught.value)


def test_a_mask_must_fit() -> None:
    with pytest.raises(ValueError, match=r"a mask for sets of shape \(2, 2, 2\) is bool \(2, 2\)"):
        read_sets(PADDED, MASK[:1])
    with pytest.raises(ValueError, match=r"got float64"):
        read_sets(PADDED, MASK.astype(float))
    with pytest.raises(TypeError, match="a mask belongs to an array"):
        read_sets(SETS, MASK)
    with pytest.raises(ValueError, match="set 1 is empty"):
        read_sets(PADDED, np.array([[True, True], [False, False]]))
