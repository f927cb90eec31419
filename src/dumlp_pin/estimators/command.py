"""What `dumlp-pin fit` and `dumlp-pin predict` do with tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dumlp_pin._files import check_folder
from dumlp_pin._predictions import write_predictions
from dumlp_pin.estimators import (
    SetAnomalyDetector,
    SetClassifier,
    SetEstimator,
    SetRegressor,
)
from dumlp_pin.tables import ColumnSets, Kind, read_table, sets_from_table, whole_sets

Task = Literal["classification", "regression", "anomaly"]

ESTIMATORS: dict[Task, type[SetEstimator]] = {
    "classification": SetClassifier,
    "regression": SetRegressor,
    "anomaly": SetAnomalyDetector,
}
MOST_NUMBERED_CLASSES = 20  # whole numbers of more values than this are amounts, not classes
LARGEST_CLASS = 2.0**63  # a float beyond is an amount, too


def fit_command(
    path: Path,
    set_column: str,
    target: str,
    out: Path,
    *,
    task: Task | None,
    features: Sequence[str],
    seed: int,
    device: str | None,
    verbose: bool,
) -> None:
    """Fit an estimator to a table, save it, and say what it learned from and how well."""
    check_folder(out)
    _check_names(set_column, target, features)
    columns = [set_column, target, *features] if features else None
    table = read_table(path, columns)
    sets = sets_from_table(table, set_column, target)
    task = task or guess_task(sets)
    estimator: Any = ESTIMATORS[task](
        set_column=set_column, target=target, random_state=seed, device=device, verbose=verbose
    )
    estimator.fit(sets)
    estimator.save(out)
    sizes = sets.sizes
    print(f"{len(sets):,} sets of {sizes.min():,} to {sizes.max():,} elements: {_columns(sets)}")
    print(f"{task} of {target}{_classes(estimator)}: {len(estimator.history_)} epochs")
    if estimator.held_out_score_ is not None:
        name = "R2" if task == "regression" else "accuracy"
        print(f"{name} on the sets held out to choose the weights: {estimator.held_out_score_:.4f}")
    print(out)


def _check_names(set_column: str, target: str, features: Sequence[str]) -> None:
    """Each column has one part to play."""
    if target == set_column:
        raise ValueError(f"column {target!r} cannot be both --set-column and --target")
    for place, name in enumerate(features):
        if name in (set_column, target):
            option = "--set-column" if name == set_column else "--target"
            raise ValueError(f"--features names {name!r}, which is the {option}: leave it out")
        if name in features[:place]:
            raise ValueError(f"--features names {name!r} twice")


def guess_task(sets: ColumnSets) -> Task:
    """Classification of words, bools and a few whole numbers, regression of other numbers."""
    assert sets.target is not None
    values = sets.target
    if values.dtype.kind not in "fiu":
        return "classification"
    whole = bool((values == np.round(values)).all() and (np.abs(values) < LARGEST_CLASS).all())
    few = len(np.unique(values)) <= MOST_NUMBERED_CLASSES
    return "classification" if whole and few else "regression"


def _columns(sets: ColumnSets) -> str:
    return ", ".join(sets.columns)


def _classes(estimator: Any) -> str:
    if not isinstance(estimator, SetClassifier):
        return ""
    classes = [str(name) for name in estimator.classes_]
    shown = ", ".join(classes[:8]) + (", ..." if len(classes) > 8 else "")
    return f" ({len(classes)} classes: {shown})"


def predict_command(model: Path, path: Path, out: Path | None, device: str | None) -> None:
    """One line a set: its id and what is predicted; on the screen, or in a file.

    A table that does not fit into memory is read and answered piece by piece.
    """
    estimator = SetEstimator.load(model).set_params(device=device)
    if estimator.set_column is None:
        raise ValueError(
            f"{model} was fitted on arrays: predict a table in Python, with the method predict"
        )
    types: dict[str, Kind] = {estimator.set_column: "word", **estimator.encoder_.kinds}
    tables = whole_sets(path, estimator.set_column, types)
    features = list(estimator.encoder_.columns)
    pieces = (sets_from_table(one, estimator.set_column, features=features) for one in tables)
    lines = (line for sets in pieces for line in _lines(estimator, sets))
    write_predictions(out, _names(estimator), lines)


def _names(estimator: SetEstimator) -> list[str]:
    """The first is the set, the second the answer."""
    names = [str(estimator.set_column), str(estimator.target or "prediction")]
    if isinstance(estimator, SetClassifier):
        return [*names, *(f"probability of {name}" for name in estimator.classes_)]
    return [*names, "probability"] if isinstance(estimator, SetAnomalyDetector) else names


def _lines(estimator: SetEstimator, sets: ColumnSets) -> Iterator[list[Any]]:
    if isinstance(estimator, SetClassifier):
        chances = estimator.predict_proba(sets)
        names = estimator.classes_[chances.argmax(1)]
        for which, name, each in zip(sets.ids, names, chances, strict=True):
            yield [which, name, *(f"{chance:.6g}" for chance in each)]
    elif isinstance(estimator, SetAnomalyDetector):
        for which, each in zip(sets.ids, estimator.predict_proba(sets), strict=True):
            yield [which, each.argmax(), f"{each.max():.6g}"]
    elif isinstance(estimator, SetRegressor):
        for which, value in zip(sets.ids, estimator.predict(sets), strict=True):
            yield [which, f"{value:.9g}"]
