"""The page of tables says what the results say, and where there are none, how to get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dumlp_pin.training.paper import TABLES, get_table
from dumlp_pin.training.recipe import load_recipe
from dumlp_pin.training.report import write_report
from dumlp_pin.training.results import write_json
from tests.commands import Run

ROOT = Path(__file__).parents[2]


def write_result(folder: Path, recipe: str, last: float, *changes: str, **more: Any) -> None:
    row = {"epoch": 250, "overall_accuracy": last}
    result = {
        "recipe": load_recipe(recipe, changes).to_dict(),
        "seed": 0,
        "headline": "overall_accuracy",
        "scored_on": "test",
        "last": row,
        "best_on_test": row | {"epoch": 220, "overall_accuracy": last + 0.002},
        "seconds": 300.0,
        "seeds_at_once": 3,
        "device": "NVIDIA H200",
        "parameters": 12_345,
    }
    write_json(folder / "result.json", result | more)


def fill(folder: Path) -> Path:
    """Three seeds of a row, one of another, a recipe beyond the paper, and one that failed."""
    for seed, last in enumerate((0.915, 0.917, 0.916)):
        write_result(folder / f"modelnet40/seed{seed}", "modelnet40", last, seed=seed)
    write_result(folder / "pct", "modelnet40_pct", 0.93, seeds_at_once=1)
    changes = ("epochs=300", "data.holdout=0.2")
    write_result(folder / "x", "modelnet40", 0.921, *changes, scored_on="held-out 20% of training")
    failure = {"recipe": load_recipe("modelnet40_deepsets").to_dict(), "seed": 4, "epoch": 3}
    write_json(folder / "failed" / "failed.json", failure | {"error": "the loss is nan"})
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return fill(tmp_path)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report(fill(tmp_path_factory.mktemp("results")))


def section(page: str, title: str) -> list[str]:
    return page.partition(f"\n## {title}")[2].partition("\n## ")[0].splitlines()


def line(lines: list[str], start: str) -> str:
    (found,) = [each for each in lines if each.startswith(start)]
    return found


def test_a_row_has_both_protocols_seeds_time_hardware_and_what_differs(page: str) -> None:
    lines = section(page, "Table 3")
    assert line(lines, "| DuMLP-Pin |") == (
        "| DuMLP-Pin | 0.29 M | 291,112 | 92.3 ± 0.12 | **91.60 ± 0.10** | 91.80 ± 0.10 "
        "| 3 | 300 s | NVIDIA H200, 3 seeds at once |"
    )
    assert line(lines, "- **DuMLP-Pin**") == (
        "- **DuMLP-Pin**: 0.50 below the paper, more than the noise of 0.21."
    )
    assert line(lines, "| PCT |").endswith("| **93.00** | 93.20 | 1 | 300 s | NVIDIA H200 |")
    # One seed has the spread of the rows together.
    assert line(lines, "- **PCT**") == "- **PCT**: 0.00 from the paper, within the noise of 0.25."


def test_a_row_without_a_run_says_so_with_its_command(page: str) -> None:
    lines = section(page, "Table 3")
    assert line(lines, "| PointNet |") == (
        "| PointNet | 3.48 M | 3,480,433 | 89.2 | not run |  |  |  |  |"
    )
    words = line(lines, "- **PointNet**").split("`")
    assert words[0] == "- **PointNet**: Not run; "
    assert words[1].startswith("dumlp-pin train modelnet40_pointnet --out ")
    assert words[1].endswith("/modelnet40_pointnet --seeds 5")
    failed = line(lines, "- **Deep Sets**")
    assert failed.startswith(
        "- **Deep Sets**: Seed 4 failed in epoch 3: the loss is nan. No run came to its end; `dumlp"
    )


def test_every_table_is_there_and_scannet_is_empty_with_its_way(page: str) -> None:
    assert page.count("\n## ") == len(TABLES) + 2  # what is beyond the paper, and weights
    lines = section(page, "Table 9")
    line(lines, "Not run; all rows: `dumlp-pin reproduce table9 --results ")
    assert "python -m pytest tests/training/test_scannet.py" in lines
    assert line(lines, "| DuMLP-Pin-S |") == "| DuMLP-Pin-S | 0.71 M | 705,685 | 76.9 ± 0.04 |"


def test_recipes_of_no_row_are_told_apart_by_what_they_change(page: str) -> None:
    lines = section(page, "Beyond the paper")
    assert line(lines, "| `modelnet40`") == (
        "| `modelnet40`: data.holdout is 0.2, not 0.0; epochs is 300, not 250 | overall accuracy "
        "| held-out 20% of training | 12,345 | **92.10** | 92.30 | 1 | 300 s "
        "| NVIDIA H200, 3 seeds at once |"
    )


def test_runs_cut_short_stand_in_a_table_of_their_own(tmp_path: Path) -> None:
    for recipe, last in (("modelnet40", 0.908), ("modelnet40_pct", 0.886)):
        changes = ("epochs=20", "schedule.milestones=[16]")
        write_result(tmp_path / recipe, recipe, last, *changes)
    write_speed(tmp_path)
    page = write_report(tmp_path)
    lines = section(page, "Table 3")
    begin = lines.index("The same recipes for 20 epochs instead of 250:")
    assert "Not run; all rows: " in "".join(lines[:begin])
    rows = [each for each in lines[begin:] if each.startswith("| ")][2:]
    assert [each.split(" | ")[0] for each in rows] == ["| PCT", "| DuMLP-Pin"]
    assert rows[0].endswith("NVIDIA H200, 3 seeds at once | 2,219.6 M | 5,000 |")
    ours = "| **90.80** | 91.00 | 1 | 300 s | NVIDIA H200, 3 seeds at once | 18.5 M |  |"
    assert rows[1].endswith(ours)
    assert "Beyond the paper" not in page


def test_the_order_of_rows_is_judged_where_seeds_allow(tmp_path: Path) -> None:
    means = {"1 x 1024": 0.914, "2 x 512": 0.912, "4 x 256": 0.913}  # in the paper 91.8, 92.1, 91.6
    for row in get_table("table6").rows[:3]:
        for seed in range(2):
            folder, last = tmp_path / row.folder / str(seed), means[row.label] + 1e-4 * seed
            write_result(folder, row.recipe, last, *row.changes, seed=seed)
    assert section(write_report(tmp_path), "Table 6")[-1] == (
        "First is 1 x 1024. Of 3 pairs of rows 3 differ here by more than noise: "
        "1 in the order of the paper, "
        "2 in the other (1 x 1024 above 2 x 512; 4 x 256 above 2 x 512)."
    )


def test_remarks_stand_beside_results_and_only_there(results: Path) -> None:
    remarks = results / "remarks.toml"
    remarks.write_text('[table3]\nDuMLP-Pin = "Points were sampled anew."\nall = "One GPU."\n')
    lines = section(write_report(results), "Table 3")
    assert line(lines, "- **DuMLP-Pin**").endswith("noise of 0.21. Points were sampled anew.")
    assert "One GPU." in lines
    for text, message in (
        ('[tabel3]\nall = "."', r"remarks.toml: the paper has no 'tabel3'; did you mean 'table3'"),
        ('[table3]\nDuMLP = "."', r"table3 has no row 'DuMLP'; did you mean 'DuMLP-Pin'"),
        ('[table3]\nPointNet = "."', r"table3, PointNet: there is a remark, but no result$"),
    ):
        remarks.write_text(text)
        with pytest.raises((KeyError, ValueError), match=message):
            write_report(results)


def test_tables_of_robustness_join_the_page(tmp_path: Path) -> None:
    rows = [{"kind": "jittered", "level": "sigma 0.01", "scores": {"ours": 0.5, "theirs": 0.25}}]
    table = {"data": "modelnet40", "metric": "overall_accuracy", "rows": rows}
    models = {"ours": "modelnet40", "theirs": "modelnet40_pointnet"}
    write_json(tmp_path / "robustness" / "modelnet40.json", table | {"models": models})
    lines = section(write_report(tmp_path), "Robustness on modelnet40")
    assert "|  |  | `ours` | `theirs` |" in lines
    assert "| jittered | sigma 0.01 | 50.00 | 25.00 |" in lines


def write_speed(folder: Path) -> None:
    row = {"label": "PCT", "model": "pct_modelnet40", "sets_per_second": 5000.4}
    row |= {"sets_at_once": 256, "one_set_seconds": 0.004}
    write_json(folder / "complexity.json", {"device": "NVIDIA H200", "rows": [row]})


def test_speeds_stand_beside_the_counts_once_they_are_measured(page: str, tmp_path: Path) -> None:
    lines = section(page, "Table 5")
    assert line(lines, "| DuMLP-Pin |") == "| DuMLP-Pin | 0.29 M | 291,112 | 19 | 18.5 |"
    assert line(lines, "No speed").startswith("No speed was measured; `dumlp-pin reproduce table5")
    write_speed(tmp_path)
    lines = section(write_report(tmp_path), "Table 5")
    assert line(lines, "| PCT |").endswith(" | 2,219.6 | 5,000 | 256 | 4.00 |")
    assert "Speeds are those of evaluation on NVIDIA H200." in lines


def test_weights_that_ship_are_listed_with_their_cards(page: str) -> None:
    lines = section(page, "Weights that ship")
    card = "../src/dumlp_pin/weights/dumlp_pin_digits/README.md"
    assert line(lines, "| [`dumlp_pin_digits`]") == (
        f"| [`dumlp_pin_digits`]({card}) | digits | 24,234 | overall accuracy | 94.60 |"
    )


def test_the_page_in_the_documentation_is_made_from_the_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert write_report(Path("results")) == page, "dumlp-pin report results --out docs/..."


def test_the_command_writes_the_same_page_again(results: Path, tmp_path: Path, run: Run) -> None:
    page = tmp_path / "docs" / "reproduction.md"
    assert run("report", results, "--out", page).lines == [str(page)]
    first = page.read_bytes()
    run("report", results, "--out", page)
    assert page.read_bytes() == first
    errors = run("report", tmp_path / "none", "--out", page, fails=True).errors
    assert errors == f"dumlp-pin: there is no folder {tmp_path / 'none'} with results\n"


@pytest.mark.parametrize(
    "name", ["remarks.toml", "complexity.json", "robustness/a.json", "run/failed.json"]
)
def test_a_file_that_holds_something_else_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    for text in ("{", "[1]" if name.endswith("json") else "= 1", "{}"):
        if name == "remarks.toml" and text == "{}":
            continue
        path.write_text(text)
        with pytest.raises(ValueError, match=f"{name} cannot be read: "):
            write_report(tmp_path)
