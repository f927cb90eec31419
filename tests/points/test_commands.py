"""`dumlp-pin predict` and `dumlp-pin search` on files of points."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from dumlp_pin.pretrained import list_pretrained
from tests.commands import Run
from tests.points import clouds
from tests.points.shapes import box, labeller, namer, read_labelled


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    namer(folder / "plain", features=3)
    namer(folder / "normals", features=6)
    labeller(folder / "parts")
    return folder


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    box(tmp_path / "tower.off", 1, 5, 1)
    box(tmp_path / "deep" / "high.off", 1, 6, 1.2)
    box(tmp_path / "plate.off", 5, 1, 5)
    box(tmp_path / "deep" / "lying.off", 1, 1, 5)
    return tmp_path


@pytest.mark.parametrize("model", ["plain", "normals"])
def test_shapes_are_named_with_probabilities(
    model: str, runs: Path, shapes: Path, run: Run
) -> None:
    lines = run("predict", runs / model, shapes / "tower.off", shapes / "plate.off").lines
    assert lines[0].startswith(f"{shapes / 'tower.off'}: tower ")
    assert lines[1].startswith(f"{shapes / 'plate.off'}: plate ")
    assert all(line.count("%") == 2 for line in lines)


def test_what_lies_is_turned_up(runs: Path, shapes: Path, run: Run) -> None:
    lying = shapes / "deep" / "lying.off"
    (line,) = run("predict", runs / "plain", lying, "--up", "z").lines
    assert ": tower 9" in line
    box(lying, 5, 1, 1)
    (line,) = run("predict", runs / "plain", lying, "--up", "x").lines
    assert ": tower 9" in line


def test_probabilities_go_to_a_table(runs: Path, shapes: Path, run: Run) -> None:
    out = shapes / "names.csv"
    run("predict", runs / "plain", shapes / "tower.off", shapes / "plate.off", "--out", out)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["class"] for row in rows] == ["tower", "plate"]
    for row in rows:
        chances = [float(row[f"probability of {name}"]) for name in ("tower", "plate")]
        assert sum(chances) == pytest.approx(1, abs=1e-5)
        assert max(chances) == float(row[f"probability of {row['class']}"])


def test_normals_that_are_not_there_are_estimated_and_told(
    runs: Path, tmp_path: Path, run: Run
) -> None:
    clouds.las(tmp_path / "scan.las")
    result = run("predict", runs / "normals", tmp_path / "scan.las")
    assert "scan.las: it has no normals; they are estimated" in result.errors
    assert not run("predict", runs / "plain", tmp_path / "scan.las").errors


def test_files_that_cannot_be_read_do_not_hold_up_the_others(
    runs: Path, shapes: Path, run: Run
) -> None:
    (shapes / "broken.off").write_text("OFF\n")
    result = run("predict", runs / "plain", shapes / "broken.off", shapes / "plate.off", fails=True)
    assert result.lines[0].startswith(f"{shapes / 'plate.off'}: plate ")
    assert "broken .off file" in result.errors
    assert result.errors.endswith("dumlp-pin: 1 of 2 files could not be read\n")
    alone = run("predict", runs / "plain", shapes / "broken.off", fails=True)
    assert alone.errors.startswith(f"dumlp-pin: {shapes / 'broken.off'}: broken .off file")


def test_a_search_lists_what_is_like_the_query_first(runs: Path, shapes: Path, run: Run) -> None:
    lines = run("search", runs / "plain", shapes, "--query", shapes / "tower.off").lines
    assert {line.split("/")[-1] for line in lines[:2]} == {"tower.off", "high.off"}
    likeness = [float(line.split()[0]) for line in lines]
    assert (len(likeness), likeness[0]) == (4, 1)
    assert likeness == sorted(likeness, reverse=True)
    few = run(
        "search", runs / "plain", shapes, "--query", shapes / "plate.off", "--count", "1"
    ).lines
    assert few == [f"1.0000 {shapes / 'plate.off'}"]


def test_a_search_goes_past_files_that_cannot_be_read(runs: Path, shapes: Path, run: Run) -> None:
    words = ("search", runs / "plain", shapes, "--query", shapes / "tower.off")
    expected = run(*words).lines
    (shapes / "deep" / "broken.off").write_text("OFF\n")
    result = run(*words, fails=True)
    assert result.lines == expected
    assert result.errors.endswith("dumlp-pin: 1 of 5 files could not be read\n")


def test_parts_are_coloured(runs: Path, shapes: Path, run: Run) -> None:
    out = shapes / "labelled.ply"
    (line,) = run(
        "predict", runs / "parts", shapes / "tower.off", "--category", "airplane", "--out", out
    ).lines
    assert line.startswith(f"{out}: 256 points of Airplane; part 0: ")
    header, records = read_labelled(out)
    assert b"comment part 0 to 3 of Airplane, by dumlp_pin_shapenetpart_s\n" in header
    counts = np.bincount(records["part"], minlength=4)
    assert line.endswith(", ".join(f"part {part}: {count}" for part, count in enumerate(counts)))
    colours = np.stack([records[name] for name in ("red", "green", "blue")], 1)
    for part in np.unique(records["part"]):
        assert len(np.unique(colours[records["part"] == part], axis=0)) == 1
    assert len(np.unique(colours, axis=0)) == len(np.unique(records["part"]))


def test_errors_say_in_one_line_what_to_do(runs: Path, shapes: Path, run: Run) -> None:
    tower = shapes / "tower.off"

    def fails(message: str, *words: str | Path) -> None:
        errors = run(*words, fails=True).errors
        assert errors.startswith("dumlp-pin: ")
        assert errors.count("\n") == 1
        assert message in errors

    fails("files of points are for models of modelnet40 and", "predict", "digits", tower)
    fails("no file is given: predict MODEL FILE ...", "predict", runs / "plain")
    fails("names shapes, it takes no category", "predict", runs / "plain", tower, "--category", "x")
    fails("there is no file", "predict", runs / "plain", shapes / "nowhere.off")
    fails("predictions are written as .csv", "predict", runs / "plain", tower, "--out", "a.txt")
    labelled = ("predict", runs / "parts", tower, "--out", shapes / "labelled.ply")
    fails("--category is needed, one of airplane, bag, cap", *labelled)
    fails("unknown category 'plane'; did you mean 'airplane'?", *labelled, "--category", "plane")
    fails("--category NAME --out LABELLED.ply", "predict", runs / "parts", tower)
    searched = ("search", runs / "plain", shapes / "nowhere", "--query", tower)
    fails("there is no folder", *searched)
    searched_for_none = ("search", runs / "plain", shapes, "--query", tower, "--count", "-1")
    fails("--count is -1, expected at least 1", *searched_for_none)
    (shapes / "empty").mkdir()
    fails("holds no file of points", *searched[:2], shapes / "empty", *searched[3:])
    fails("search by a classifier", "search", runs / "parts", shapes, "--query", tower)


@pytest.mark.skipif("dumlp_pin_modelnet40" not in list_pretrained(), reason="it does not ship yet")
def test_the_shipped_model_names_a_table(tmp_path: Path, run: Run) -> None:
    (line,) = run("predict", "modelnet40", box(tmp_path / "table.off", 3, 0.1, 2)).lines
    assert line.count("%") == 3
