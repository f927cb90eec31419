"""`dumlp-pin export`, of models that ship and of models that were fitted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pytest
import torch

from dumlp_pin import SetAnomalyDetector, SetClassifier, SetRegressor
from dumlp_pin.data import load
from dumlp_pin.data.library import list_datasets
from dumlp_pin.data.pixels import pixel_set
from dumlp_pin.estimators.program import FittedNetwork
from dumlp_pin.export.command import EXPECTS
from dumlp_pin.export.onnx import has_exporter
from dumlp_pin.pretrained import load_pretrained
from tests.commands import Run
from tests.estimators.sets import odd_ones

pytestmark = pytest.mark.skipif(not has_exporter(), reason="this PyTorch is too old for ONNX")


def _session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_digits_in_int8_cost_what_is_printed(tmp_path: Path, run: Run) -> None:
    out = tmp_path / "digits.onnx"
    first, second = run("export", "digits", out, "--int8").lines
    assert re.fullmatch(rf"{out}: [\d,]+ bytes in int8, [\d,]+ bytes in float32", first)
    printed = re.fullmatch(
        r"overall_accuracy on test: (\d+\.\d\d)% in int8, (\d+\.\d\d)% in float32", second
    )
    assert printed is not None

    # The weights are in eight bits, and the accuracy is that of the file.
    kinds = {tensor.data_type for tensor in onnx.load(out).graph.initializer}
    assert onnx.TensorProto.INT8 in kinds
    test = load("digits", "test")
    x = pixel_set(test.images)
    (logits,) = _session(out).run(
        None, {"x": x.numpy(), "mask": np.ones(tuple(x.shape[:2]), dtype=bool)}
    )
    accuracy = (torch.from_numpy(logits).argmax(1) == test.labels).float().mean().item()
    assert f"{accuracy:.2%}" == f"{printed[1]}%"
    model = load_pretrained("digits")
    exact = (model(x).argmax(1) == test.labels).float().mean().item()
    assert f"{exact:.2%}" == f"{printed[2]}%"


def test_every_data_set_says_what_its_models_expect() -> None:
    assert set(EXPECTS) == {status.dataset.name for status in list_datasets()}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    random = np.random.default_rng(0)
    sizes = random.integers(1, 7, 40)
    rows = int(sizes.sum())
    return pa.table(
        {
            "id": np.repeat(np.arange(40), sizes),
            "year": 2000 + random.normal(size=rows),
            "gap": pa.array(random.normal(size=rows), mask=random.random(rows) < 0.2),
            "kind": random.choice(["red", "green", "blue"], rows),
            "label": np.repeat(random.permuted(np.arange(40) % 3), sizes),
        }
    )


def test_a_fitted_model_answers_from_the_columns_of_its_table(
    table: pa.Table, tmp_path: Path, run: Run
) -> None:
    estimator = SetClassifier(
        set_column="id", target="label", width=3, max_epochs=3, random_state=0
    )
    estimator.fit(table).save(tmp_path / "model")
    (line,) = run("export", tmp_path / "model", tmp_path / "model.onnx").lines
    assert "ONNX Runtime is " in line
    assert line.endswith(" from PyTorch")

    session = _session(tmp_path / "model.onnx")
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["class_names"]) == ["0", "1", "2"]
    assert about["expects"] == (
        "year: a number, NaN where it is missing; gap: a number, NaN where it is missing; "
        "kind: 0 blue, 1 green, 2 red, -1 for another"
    )
    x, mask = _padded(table)
    (answer,) = session.run(None, {"x": x, "mask": mask})
    np.testing.assert_allclose(np.asarray(answer), estimator.predict_proba(table), atol=1e-4)


def _padded(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """What a program without this package does: words to numbers, sets to padded arrays."""
    words = ["blue", "green", "red"]
    places = [words.index(word) for word in table["kind"].to_pylist()]
    columns = [table["year"].to_numpy(), table["gap"].to_numpy(), np.array(places)]
    sizes = np.bincount(table["id"].to_numpy())
    mask = np.arange(sizes.max()) < sizes[:, None]
    x = np.full((*mask.shape, 3), -7, dtype=np.float32)
    x[mask] = np.stack(columns, 1)
    return x, mask


def test_a_fitted_network_estimates_on_the_scale_of_the_target(table: pa.Table) -> None:
    estimator = SetRegressor(set_column="id", target="label", width=3, max_epochs=3, random_state=0)
    estimator.fit(table)
    x, mask = (torch.from_numpy(array) for array in _padded(table))
    with torch.inference_mode():
        estimates = FittedNetwork(estimator).eval()(x, mask)
    np.testing.assert_allclose(estimates, estimator.predict(table), atol=1e-4)


def test_a_fitted_detector_goes_into_an_archive(tmp_path: Path, run: Run) -> None:
    X, y = odd_ones(30)
    estimator = SetAnomalyDetector(width=3, max_epochs=2, random_state=0).fit(X, y)
    estimator.save(tmp_path / "model")
    run("export", tmp_path / "model", tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    x = torch.tensor(np.stack(X), dtype=torch.float32)
    chances = program(x=x, mask=torch.ones(x.shape[:2], dtype=torch.bool))
    np.testing.assert_allclose(
        chances.detach().numpy(), np.stack(estimator.predict_proba(X)), atol=1e-5
    )


def test_errors_say_in_one_line_what_to_do(tmp_path: Path, run: Run) -> None:
    X, y = odd_ones(12)
    SetRegressor(width=2, max_epochs=1).fit(X, y).save(tmp_path / "fitted")
    for message, *words in (
        ("the suffix of a file to export to is .onnx or .pt2, got", "digits", "digits.tflite"),
        ("int8 is for .onnx files, got", "digits", "digits.pt2", "--int8"),
        ("int8 needs sets to measure its cost on", tmp_path / "fitted", "a.onnx", "--int8"),
        ("called 'dumlp_pin_digit'; did you mean 'dumlp_pin_digits'?", "dumlp_pin_digit", "a.onnx"),
    ):
        errors = run("export", *words, fails=True).errors
        assert errors.startswith("dumlp-pin: ")
        assert errors.count("\n") == 1
        assert message in errors


def test_ranks_are_those_of_the_estimator(tmp_path: Path, run: Run) -> None:
    """Which a fit has from a thousand sets on."""
    random = np.random.default_rng(0)
    sizes = random.integers(1, 4, 1000)
    X = [np.exp(random.normal(size=(size, 2))) for size in sizes]
    estimator = SetClassifier(width=2, max_epochs=1, random_state=0)
    estimator.fit(X, np.arange(1000) % 2).save(tmp_path / "model")
    assert estimator.encoder_.width == 6
    run("export", tmp_path / "model", tmp_path / "model.onnx")
    mask = np.arange(3) < sizes[:, None]
    x = np.full((1000, 3, 2), -7, dtype=np.float32)
    x[mask] = np.concatenate(X)
    (answer,) = _session(tmp_path / "model.onnx").run(None, {"x": x, "mask": mask})
    np.testing.assert_allclose(np.asarray(answer), estimator.predict_proba(X), atol=1e-4)
