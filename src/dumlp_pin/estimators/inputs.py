"""The forms in which an estimator takes sets, all turned into `ColumnSets`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dumlp_pin.sets import SetBatch
from dumlp_pin.tables import ColumnSets, is_table, sets_from_table

FORMS = "a list of arrays (N_b, F), an array (B, N, F), a table or a SetBatch"


def read_sets(
    x: Any,
    mask: Any = None,
    *,
    set_column: str | None = None,
    target: str | None = None,
    features: list[str] | None = None,
) -> ColumnSets:
    """Sets in any of the forms. `set_column`, `target` and `features` are columns of a table.

    >>> read_sets([np.ones((2, 3)), np.ones((5, 3))]).sizes.tolist()
    [2, 5]
    """
    if mask is None:
        if isinstance(x, ColumnSets):
            return x
        if is_table(x):
            return sets_from_table(x, set_column, target, features)
    elif not isinstance(x, np.ndarray | torch.Tensor):
        raise TypeError("a mask belongs to an array (B, N, F), the other forms know their sizes")
    rows, sizes = _rows(x, mask)
    if not len(sizes):
        raise ValueError("expected at least one set, got none")
    if not sizes.all():
        raise ValueError(f"set {sizes.argmin()} is empty; every set needs an element")
    columns = {f"x{index}": column for index, column in enumerate(rows.T)}
    return ColumnSets(columns, np.concatenate(([0], sizes.cumsum())), np.arange(len(sizes)))


def _rows(x: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows (T, F) and sizes (B,)."""
    if isinstance(x, SetBatch):
        return _numbers(x.rows, "the rows of a SetBatch"), x.sizes.cpu().numpy()
    if isinstance(x, torch.Tensor) or (isinstance(x, np.ndarray) and x.dtype != object):
        return _padded(x, mask)
    if not isinstance(x, list | tuple | np.ndarray):
        raise TypeError(f"sets are {FORMS}; got {type(x).__name__}")
    sets = [_numbers(one, f"set {index}") for index, one in enumerate(x)]
    widths = sorted({one.shape[1] for one in sets})
    if len(widths) > 1:
        raise ValueError(f"every set needs the same number of features, got {widths}")
    rows = np.concatenate(sets) if sets else np.empty((0, 0))
    return rows, np.array([len(one) for one in sets], dtype=np.int64)


def _padded(x: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
    if x.ndim != 3:
        raise ValueError(f"sets are {FORMS}; got an array of shape {tuple(x.shape)}")
    if mask is None:
        mask = np.ones(x.shape[:2], dtype=bool)
    mask = np.asarray(mask.cpu() if isinstance(mask, torch.Tensor) else mask)
    if mask.dtype != bool or mask.shape != tuple(x.shape[:2]):
        raise ValueError(
            f"a mask for sets of shape {tuple(x.shape)} is bool {tuple(x.shape[:2])}, True where "
            f"an element is real; got {mask.dtype} {mask.shape}"
        )
    values = _numbers(x.reshape(x.shape[0] * x.shape[1], x.shape[2]), "the array")
    return values[mask.reshape(-1)], mask.sum(1)


def _numbers(x: Any, name: str) -> np.ndarray:
    """(N, F) floats."""
    values = np.asarray(x.detach().cpu() if isinstance(x, torch.Tensor) else x)
    if values.ndim != 2:
        raise ValueError(f"{name} is not (N, F), it has shape {values.shape}; sets are {FORMS}")
    if not values.shape[1]:
        raise ValueError(
            f"{name} has 0 feature(s) (shape={values.shape}) while a minimum of 1 is required; "
            f"sets are {FORMS}"
        )
    if values.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: {name} is {values.dtype}")
    if values.dtype in (np.float32, np.float64):
        return values
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} is not of numbers: {error}") from error
