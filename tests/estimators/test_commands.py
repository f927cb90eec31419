"""`dumlp-pin fit` and `dumlp-pin predict` on tables."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from dumlp_pin import SetAnomalyDetector, SetClassifier, SetRegressor, tables
from dumlp_pin.estimators import SetEstimator, base
from dumlp_pin.estimators.command import guess_task
from dumlp_pin.tables import ColumnSets
from tests.commands import Run
from tests.estimators.sets import odd_ones, rings_and_blobs


@pytest.fixture(autouse=True)
def _fits_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "STEPS", 100)


@pytest.fixture
def table(tmp_path: Path) -> pa.Table:
    X, y = rings_and_blobs(60)
    X = [one - one.mean(0) for one in X]
    ids = np.repeat([f"s{index}" for index in range(60)], [len(one) for one in X])
    sizes = [len(one) for one in X]
    rows = np.concatenate(X)
    return pa.table(
        {
            "shape": ids,
            "east": rows[:, 0],
            "north": pa.array(rows[:, 1], mask=np.arange(len(rows)) % 9 == 0),
            "side": np.where(rows[:, 0] > 0, "right", "left"),
            "kind": np.repeat(np.where(y, "ring", "blob"), sizes),
            "width": np.repeat([float(np.ptp(one)) for one in X], sizes),
        }
    )


@pytest.fixture
def file(table: pa.Table, tmp_path: Path) -> Path:
    path = tmp_path / "shapes.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=50)
    return path


FIT = ("--set-column", "shape", "--target")


def test_from_a_table_to_a_model_to_answers(
    file: Path, table: pa.Table, tmp_path: Path, run: Run
) -> None:
    model, out = tmp_path / "model", tmp_path / "answers.csv"
    lines = run("fit", file, *FIT, "kind", "--out", model).lines
    assert lines[0] == "60 sets of 10 to 39 elements: east, north, side, width"
    assert lines[1].startswith("classification of kind (2 classes: blob, ring): ")
    assert lines[2].startswith("accuracy on the sets held out to choose the weights: ")
    assert lines[3] == str(model)

    assert not run("predict", model, file, "--out", out).output
    estimator: Any = SetEstimator.load(model)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["shape"] for row in rows] == [f"s{index}" for index in range(60)]
    assert [row["kind"] for row in rows] == estimator.predict(table).tolist()
    chances = [[float(row[f"probability of {name}"]) for name in ("blob", "ring")] for row in rows]
    np.testing.assert_allclose(chances, estimator.predict_proba(table), atol=1e-6)
    # On the screen the same, and of a CSV file too.
    assert run("predict", model, file).output == out.read_text()
    pyarrow.csv.write_csv(table.drop(["kind"]), tmp_path / "new.csv")
    assert run("predict", model, tmp_path / "new.csv").output == out.read_text()


def test_a_table_beyond_memory_is_answered_in_pieces(
    file: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("fit", file, *FIT, "kind", "--out", tmp_path / "model")
    whole = run("predict", tmp_path / "model", file).lines
    monkeypatch.setattr(tables, "_free_memory", lambda: 1)
    for line, again in zip(whole, run("predict", tmp_path / "model", file).lines, strict=True):
        assert line.split(",")[:2] == again.split(",")[:2]
    errors = run("fit", file, *FIT, "kind", "--out", tmp_path / "other", fails=True).errors
    assert "too big for the memory of this machine: take a part of its sets" in errors


def test_numbers_are_estimated_and_columns_chosen(file: Path, tmp_path: Path, run: Run) -> None:
    model = tmp_path / "model"
    lines = run("fit", file, *FIT, "width", "--features", "east", "north", "--out", model).lines
    assert lines[0].endswith(": east, north")
    assert lines[1].startswith("regression of width: ")
    assert lines[2].startswith("R2 on the sets held out")
    header, first, *rest = run("predict", model, file).lines
    assert header == "shape,width"
    assert first.startswith("s0,")
    assert len(rest) == 59
    assert isinstance(SetEstimator.load(model), SetRegressor)


def test_the_odd_row_is_found(tmp_path: Path, run: Run) -> None:
    X, y = odd_ones(60)
    rows = np.concatenate(X)
    odd = np.arange(len(rows)) % 6 == np.repeat(y, 6)
    columns = {"id": np.arange(len(rows)) // 6, "a": rows[:, 0], "b": rows[:, 1], "odd": odd}
    table = pa.table(columns)
    pyarrow.parquet.write_table(table, tmp_path / "sets.parquet")
    fit = ("fit", tmp_path / "sets.parquet", "--set-column", "id", "--target", "odd")
    run(*fit, "--task", "anomaly", "--out", tmp_path / "model")
    model: Any = SetEstimator.load(tmp_path / "model")
    assert isinstance(model, SetAnomalyDetector)
    header, *lines = run("predict", tmp_path / "model", tmp_path / "sets.parquet").lines
    assert header == "id,odd,probability"
    assert [int(line.split(",")[1]) for line in lines] == model.predict(table).tolist()


def test_what_to_learn_is_guessed_from_the_values_of_the_target() -> None:
    def guessed(values: Any) -> str:
        target = np.asarray(values)
        return guess_task(ColumnSets({}, np.arange(len(target) + 1), target, target))

    assert guessed(["a", "b"]) == guessed([True, False]) == guessed([3, 1, 2]) == "classification"
    assert guessed([1.0, 2.0]) == "classification"
    assert guessed([1.5, 2.0]) == guessed(np.arange(21)) == "regression"
    assert guessed([1e300, 2e300]) == "regression"


def test_errors_say_in_one_line_what_to_do(file: Path, tmp_path: Path, run: Run) -> None:
    def fails(message: str, *words: str | Path) -> None:
        errors = run(*words, fails=True).errors
        assert errors.startswith("dumlp-pin: ")
        assert errors.count("\n") == 1
        assert message in errors

    out = ("--out", tmp_path / "model")
    fails("there is no file", "fit", tmp_path / "no.csv", *FIT, "kind", *out)
    fails("no column 'kid'; did you mean 'kind'?", "fit", file, *FIT, "kid", *out)
    wrong = ("--set-column", "shap", "--target", "kind")
    fails("no column 'shap'; did you mean 'shape'?", "fit", file, *wrong, *out)
    fails("set 's0' has two labels", "fit", file, *FIT, "side", *out)
    fails("no column 'up'", "fit", file, *FIT, "kind", "--features", "up", *out)
    fails("marks one row of each set", "fit", file, *FIT, "kind", "--task", "anomaly", *out)
    fails("cannot be both --set-column and --target", "fit", file, *FIT, "shape", *out)
    twice = ("fit", file, *FIT, "kind", *out, "--features")
    fails("names 'kind', which is the --target: leave it out", *twice, "kind")
    fails("names 'shape', which is the --set-column: leave it out", *twice, "shape")
    fails("--features names 'east' twice", *twice, "east", "north", "east")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    fails("broken.parquet cannot be read as", "fit", tmp_path / "broken.parquet", *FIT, "k", *out)
    assert not (tmp_path / "model").exists()

    run("fit", file, *FIT, "kind", *out)
    fails("holds no result.json", "predict", tmp_path, file)
    fails("takes one table, got 2 files", "predict", tmp_path / "model", file, file)
    fails("written as .csv", "predict", tmp_path / "model", file, "--out", "answers.xlsx")
    less = tmp_path / "less.csv"
    less.write_text("shape,east,north,side\ns0,1,2,left\n")
    fails("no column 'width'; known: ", "predict", tmp_path / "model", less)
    less.write_text("shape,east,north,side,width\ns0,1,2,left,broad\n")
    fails("less.csv cannot be read as csv", "predict", tmp_path / "model", less)

    arrays = SetClassifier(max_epochs=1).fit(*odd_ones(12))
    arrays.save(tmp_path / "arrays")
    fails("was fitted on arrays: predict a table in Python", "predict", tmp_path / "arrays", file)


@pytest.mark.parametrize("module", ["sklearn", "pyarrow"])
def test_a_missing_extra_is_named(
    module: str, file: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    needing = "dumlp_pin.estimators" if module == "sklearn" else module
    for name in list(sys.modules):
        if f"{name}.".startswith((f"{module}.", f"{needing}.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # as where it is not installed
    errors = run("fit", file, *FIT, "kind", "--out", tmp_path / "model", fails=True).errors
    assert errors.startswith(f"dumlp-pin: {module}")
    assert errors.endswith('is not installed: pip install "dumlp-pin[tables]"\n')
