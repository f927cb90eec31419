from __future__ import annotations

import io
import json
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from dumlp_pin.cli import main
from dumlp_pin.training.paper import TABLES, Row, Table, get_table
from dumlp_pin.training.recipe import load_recipe
from dumlp_pin.training.reproduce import load_runs, reproduce
from dumlp_pin.training.results import write_json

from .runs import stopped_after


def printed(name: str, folder: Path, **options: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=160)
    reproduce(name, folder, console, **options)
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def write_result(
    path: Path, seed: int, last: float, best: float, *changes: str, recipe: str = "mnist_s"
) -> None:
    result = {
        "recipe": load_recipe(recipe, changes).to_dict(),
        "seed": seed,
        "last": {"epoch": 250, "overall_accuracy": last},
        "best_on_test": {"epoch": 220, "overall_accuracy": best},
        "seconds": 300.0 + seed,
        "device": "NVIDIA H200",
    }
    write_json(path / "result.json", result)


def test_a_row_has_mean_and_spread_over_its_seeds(tmp_path: Path) -> None:
    for seed, (last, best) in enumerate([(0.991, 0.992), (0.993, 0.993), (0.992, 0.994)]):
        write_result(tmp_path / "any" / str(seed), seed, last, best)
    lines = printed("table1", tmp_path)
    # The table is of error rates.
    assert (
        "DuMLP-Pin-S 0.28 M 0.80 ± 0.053 283,210 0.80 ± 0.10 0.70 ± 0.10 3 301 s NVIDIA H200"
        in lines
    )
    assert "PointNet 3.47 M 0.78 3,472,339 not run" in lines
    assert "DuMLP-Pin-L 1.13 M 0.48 ± 0.034 1,129,994 not run" in lines
    assert not any(line.startswith("left out") for line in lines)


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    write_result(tmp_path, 0, 0.9174, 0.9226, recipe="modelnet40")
    for name in ("table3", "table7", "figure4"):  # one run counts wherever its recipe is a row
        assert any("91.74 92.26 1 300 s NVIDIA H200" in line for line in printed(name, tmp_path))
    assert not any("91.74" in line for line in printed("table6", tmp_path))


def test_a_changed_recipe_does_not_count(tmp_path: Path) -> None:
    write_result(tmp_path / "a", 0, 0.999, 0.999, "epochs=300", "batch_size=64")
    write_result(tmp_path / "b", 0, 0.998, 0.998, "data.holdout=0.1")
    write_result(tmp_path / "c", 0, 0.99, 0.99)
    write_result(tmp_path / "d", 0, 0.98, 0.98)
    lines = printed("table1", tmp_path)
    assert any("1.00 1.00 1 300 s" in line for line in lines)
    start = f"left out: {tmp_path}"
    assert [line for line in lines if line.startswith("left out")] == [
        f"{start}/a/result.json: epochs is 300, not 250; batch_size is 64, not 32",
        f"{start}/b/result.json: data.holdout is 0.1, not 0.0",
        f"{start}/d/result.json: seed 0 is there already",
    ]
    assert not any(line.startswith("left out") for line in printed("table3", tmp_path))


def commands(lines: Sequence[str]) -> list[list[str]]:
    return [shlex.split(line) for line in lines if line.startswith("dumlp-pin train")]


@pytest.mark.parametrize("name", [name for name in TABLES if name != "table5"])
def test_the_commands_would_run_the_rows(name: str, tmp_path: Path) -> None:
    rows = get_table(name).rows
    found = commands(printed(name, tmp_path))
    assert len(found) == len(rows)
    for row, (_, _, recipe, *options) in zip(rows, found, strict=True):
        pairs = list(zip(options[::2], options[1::2], strict=True))
        changes = [value for option, value in pairs if option == "--set"]
        assert load_recipe(recipe, changes) == row.load()
        assert ("--out", str(tmp_path / row.folder)) in pairs


@pytest.fixture
def only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A complexity table of one row: to measure all of them takes a minute."""
    table = TABLES["table5"]
    monkeypatch.setitem(TABLES, "table5", replace(table, rows=table.rows[-1:]))


@pytest.mark.usefixtures("only_ours")
def test_complexity_is_counted_and_measured(tmp_path: Path) -> None:
    out = tmp_path / "complexity.json"
    *lines, last = printed("table5", tmp_path, device="cpu", out=out)
    assert last.startswith("measured on ")
    written = json.loads(out.read_text())
    (row,) = written["rows"]
    assert written["torch"] == torch.__version__
    assert (row["model"], row["macs"]) == ("dumlp_pin_modelnet40", 18_491_392)
    rate, milliseconds = row["sets_per_second"], 1000 * row["one_set_seconds"]
    assert f"DuMLP-Pin 0.29 M 19 291,112 18.5 {rate:,.1f} 8 {milliseconds:,.2f}" in lines


def test_only_complexity_writes_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^only complexity writes a file: table1 has"):
        printed("table1", tmp_path, out=tmp_path / "table1.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"seed": 0}, "recipe"),
        ({"recipe": {"name": "mnist_s", "epoch": 1}}, "seed"),
        ([], "indices"),
    ],
)
def test_what_is_no_result_is_named(content: Any, message: str, tmp_path: Path) -> None:
    write_json(tmp_path / "result.json", content)
    with pytest.raises(ValueError, match=rf"result\.json is not the result of a run: .*{message}"):
        load_runs(tmp_path)


@pytest.fixture
def quick_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that a test can run: two epochs on a fifth of the embedded digits."""
    changes = ("epochs=2", "batch_size=64", "data.holdout=0.8")
    rows = (Row("ours", "digits", 2.0, changes=changes),)
    table = Table("table0", "trial", "digits", "overall_accuracy", rows)
    monkeypatch.setitem(TABLES, "table0", table)


@pytest.mark.usefixtures("quick_table")
def test_run_trains_what_is_missing(tmp_path: Path) -> None:
    with stopped_after(epoch=1):
        printed("table0", tmp_path, run=True, seeds=2, device="cpu")
    assert not list(tmp_path.rglob("result.json"))

    lines = printed("table0", tmp_path, run=True, seeds=2, device="cpu")  # goes on from epoch 1
    results = sorted(tmp_path.rglob("result.json"))
    assert [str(path.relative_to(tmp_path)) for path in results] == [
        "digits-ours/seed0/result.json",
        "digits-ours/seed1/result.json",
    ]
    (line,) = [line for line in lines if line.startswith("ours")]
    assert re.search(r" 2 \d+ s ", line)
    assert "±" in line
    assert not commands(lines)

    written = [path.stat().st_mtime_ns for path in results]
    printed("table0", tmp_path, run=True, seeds=2, device="cpu")
    assert [path.stat().st_mtime_ns for path in results] == written


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_result(tmp_path, 0, 0.99, 0.995)
    monkeypatch.setattr(
        sys, "argv", ["dumlp-pin", "reproduce", "table1", "--results", str(tmp_path)]
    )
    main()
    assert re.search(r"DuMLP-Pin-S .* 1\.00 +0\.50 +1 +300 s +NVIDIA H200", capsys.readouterr().out)

    monkeypatch.setattr(sys, "argv", ["dumlp-pin", "reproduce", "tabel1"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err == (
        "dumlp-pin: the paper has no 'tabel1'; did you mean 'table1'?\n"
    )
