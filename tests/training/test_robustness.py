"""The table of robustness: what each model scores on the same corrupted sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dumlp_pin.data import PartShapes, shapenetpart, store
from dumlp_pin.training.robustness import robustness
from tests.commands import Run

from .runs import untrained_run

CPU = torch.device("cpu")


def test_models_stand_side_by_side_and_the_table_is_written(tmp_path: Path, run: Run) -> None:
    rival = str(untrained_run(tmp_path / "rival", "digits_meanpool", "0123456789"))
    out = tmp_path / "robustness.json"
    lines = run("robustness", "digits", rival, "--out", out, "--device", "cpu").lines
    assert lines[0] == "digits, overall_accuracy, %"
    written = json.loads(out.read_text())
    assert written["models"] == {"digits": "digits", rival: "digits_meanpool"}
    scores = {(row["kind"], row["level"]): row["scores"]["digits"] for row in written["rows"]}
    assert scores["as they are", ""] == 0.946
    assert scores["fewer elements", "16"] < scores["fewer elements", "32"] < 0.946
    assert scores["jittered", "sigma 0.1"] < scores["jittered", "sigma 0.01"]
    (line,) = [line for line in lines if line.strip().startswith("as they are")]
    assert "94.60" in line
    assert written["device"]

    again = robustness(["digits"], CPU)
    assert {(r["kind"], r["level"]): r["scores"]["digits"] for r in again["rows"]} == scores


def test_parts_are_asked_of_the_elements_that_have_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUMLP_PIN_DATA", str(tmp_path / "data"))
    offsets, labels = shapenetpart.PART_OFFSETS, torch.tensor([3, 8])
    for split in ("train", "val", "test"):
        record = PartShapes(
            name="shapenetpart",
            split=split,
            class_names=shapenetpart.CATEGORIES,
            points=torch.randn(2, 40, 3),
            labels=labels,
            parts=(offsets[labels][:, None] + torch.arange(40) % 4).to(torch.uint8),
            part_offsets=offsets,
        )
        store.write(record, "test")
    name = str(untrained_run(tmp_path / "run", "shapenetpart_s", shapenetpart.CATEGORIES))
    table = robustness([name], CPU)
    assert table["metric"] == "instance_miou"
    assert all(0 <= row["scores"][name] <= 1 for row in table["rows"])
    assert len(table["rows"]) == 1 + 1 + 4 + 4 + 4 + 3 + 4


def test_what_cannot_be_compared_is_refused(tmp_path: Path, run: Run) -> None:
    faces = str(untrained_run(tmp_path / "faces", "celeba", ["Young"]))
    errors = run("robustness", "digits", faces, fails=True).errors
    assert errors == (
        "dumlp-pin: models to compare are of one data set: dumlp_pin_digits is of digits, "
        "dumlp_pin_celeba of celeba\n"
    )
    errors = run("robustness", faces, fails=True).errors
    assert errors == "dumlp-pin: corruptions are of points and pixels; celeba has neither\n"
    errors = run("robustness", "digits", "digits", fails=True).errors
    assert errors == "dumlp-pin: a model is named twice: digits, digits\n"
    assert run("robustness", fails=True).errors.startswith("dumlp-pin: no model is given")
