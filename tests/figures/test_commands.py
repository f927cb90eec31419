"""`dumlp-pin figure`: from a trained model, or from results, to a picture."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread

from dumlp_pin.data import FaceSets, PartShapes, shapenetpart, store
from dumlp_pin.training.paper import get_table
from dumlp_pin.training.results import write_json
from tests.commands import Run
from tests.training.runs import untrained_run


def looks_drawn(path: Path) -> bool:
    return path.stat().st_size < 400_000 and imread(path).std() > 0.05


@pytest.mark.parametrize(
    ("name", "options"),
    [("tsne", ("--sets", 150)), ("retrieval", ("--queries", 3)), ("attention", ("--index", 4))],
)
def test_a_shipped_model_is_drawn(name: str, options: tuple, tmp_path: Path, run: Run) -> None:
    out = tmp_path / f"{name}.png"
    words = run("figure", name, "digits", "--out", out, "--device", "cpu", *options).lines[-1]
    assert words.startswith(str(out))
    assert looks_drawn(out)
    if name == "retrieval":
        found = re.search(r"([\d.]+) % of the five nearest", words)
        assert found
        assert 80 < float(found[1]) <= 100


@pytest.fixture
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DUMLP_PIN_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.mark.usefixtures("data_root")
def test_parts_of_each_category_are_drawn(tmp_path: Path, drawn: list[Figure], run: Run) -> None:
    labels = torch.tensor([4, 0, 4])
    offsets = shapenetpart.PART_OFFSETS
    for split in ("train", "val", "test"):
        record = PartShapes(
            name="shapenetpart",
            split=split,
            class_names=shapenetpart.CATEGORIES,
            points=torch.randn(3, 40, 3),
            labels=labels,
            parts=offsets[labels][:, None].expand(3, 40).to(torch.uint8),
            part_offsets=offsets,
        )
        store.write(record, "test")
    folder = untrained_run(tmp_path / "run", "shapenetpart_s", shapenetpart.CATEGORIES)
    run("figure", "parts", folder, "--out", tmp_path / "parts.png", "--device", "cpu")
    texts = [text.get_text() for text in drawn[0].texts]
    assert [text.partition(",")[0] for text in texts[:2]] == ["airplane", "chair"]
    assert len(drawn[0].axes) == 4


@pytest.mark.usefixtures("data_root")
def test_anomalies_are_drawn_with_a_word_on_privacy(
    tmp_path: Path, drawn: list[Figure], run: Run
) -> None:
    for split in ("train", "test"):
        record = FaceSets(
            name="celeba",
            split=split,
            class_names=("Young", "Wearing_Hat"),
            images=torch.randint(0, 255, (20, 3, 49, 40), dtype=torch.uint8),
            members=torch.arange(20).view(2, 10),
            labels=torch.tensor([3, 9]),
            attributes=torch.tensor([[0, 1], [1, 0]]),
        )
        store.write(record, "test")
    folder = untrained_run(tmp_path / "run", "celeba", ("Young", "Wearing_Hat"))
    command = ("figure", "anomalies", folder, "--out", tmp_path / "a.png", "--device", "cpu")
    assert run(*command).output.endswith("do not publish it\n")
    titles = {text.get_text() for text in drawn[0].texts}
    assert "young and wearing hat; the odd one has neither" in titles
    bars = [axes.patches[0].get_width() for axes in drawn[0].axes[1::2]]  # type: ignore[attr-defined]
    np.testing.assert_allclose(np.reshape(bars, (2, 10)).sum(1), 1, rtol=1e-5)


def test_a_picture_of_another_task_is_refused_in_one_line(tmp_path: Path, run: Run) -> None:
    for name, task in (("parts", "part-segmentation"), ("anomalies", "anomaly-detection")):
        errors = run("figure", name, "digits", "--out", tmp_path / "x.png", fails=True).errors
        assert errors == (
            f"dumlp-pin: this picture is of {task}, and dumlp_pin_digits is for classification\n"
        )
    errors = run(
        "figure", "attention", "digits", "--out", tmp_path / "x.png", "--index", 500, fails=True
    ).errors
    assert errors == "dumlp-pin: there are 500 test sets, 0 to 499; got --index 500\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tsne", "digits", "--sets", 3), "--sets is 3, expected at least 31 for a picture"),
        (("retrieval", "digits", "--queries", 0), "--queries is 0, expected at least 1"),
        (("costs", "results", "--out", "x.jpg"), "pictures are written as .png, got 'x.jpg'"),
        (("attention", "digits", "--out", "x"), "pictures are written as .png, got 'x'"),
    ],
)
def test_a_picture_that_cannot_be_made_is_one_line(
    words: tuple, message: str, tmp_path: Path, run: Run
) -> None:
    words = words if "--out" in words else (*words, "--out", tmp_path / "x.png")
    assert run("figure", *words, fails=True).errors == f"dumlp-pin: {message}\n"
    assert not list(tmp_path.iterdir())


def write_runs(folder: Path, table: str, count: int, seeds_at_once: int) -> None:
    metric = get_table(table).metric
    for number, row in enumerate(get_table(table).rows[-count:]):
        for seed in range(2):
            scores = {"epoch": 9, metric: 0.90 + 0.01 * number + 0.002 * seed}
            result = {
                "recipe": row.load().to_dict(),
                "seed": seed,
                "last": scores,
                "best_on_test": scores,
                "seconds": 120.0,
                "seeds_at_once": seeds_at_once,
                "device": "a GPU",
            }
            write_json(folder / row.folder / str(seed) / "result.json", result)


def test_activations_are_a_table_that_reads_both_ways(
    tmp_path: Path, drawn: list[Figure], run: Run
) -> None:
    write_runs(tmp_path, "figure4", count=3, seeds_at_once=1)
    run("figure", "activations", tmp_path, "--out", tmp_path / "a.png")
    axes = drawn[0].axes[0]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["softmax", "none", "ReLU", "ELU", "squashing", "squashing,\nauthors'"]
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    # squash x squash, and the authors' with either
    assert texts[4, 4] == "90.10\n± 0.14"
    assert texts[4, 5] == texts[5, 4] == "91.10\n± 0.14"
    assert texts[0, 1] == "not run"
    assert looks_drawn(tmp_path / "a.png")


def test_costs_are_those_of_the_systems_that_ran(
    tmp_path: Path, drawn: list[Figure], run: Run
) -> None:
    write_runs(tmp_path, "table3", count=1, seeds_at_once=2)
    run("figure", "costs", tmp_path, "--out", tmp_path / "c.png")
    for axes, cost in zip(drawn[0].axes, (0.291112, 18.5, 1.0), strict=True):
        place = np.asarray(axes.lines[0].get_xydata())
        np.testing.assert_allclose(place, [[cost, 90.1]], rtol=2e-3)
        assert [text.get_text() for text in axes.texts] == ["DuMLP-Pin"]


def test_costs_are_those_after_as_many_epochs_as_most_systems_had(
    tmp_path: Path, drawn: list[Figure], run: Run
) -> None:
    write_runs(tmp_path / "whole", "table3", count=1, seeds_at_once=1)
    write_runs(tmp_path / "short", "table3", count=3, seeds_at_once=1)
    for path in (tmp_path / "short").rglob("result.json"):
        result = json.loads(path.read_text())
        result["recipe"]["epochs"] = 60
        write_json(path, result)
    run("figure", "costs", tmp_path, "--out", tmp_path / "c.png")
    axes = drawn[0].axes[0]
    names = [text.get_text() for text in axes.texts]
    assert names == ["PCT", "Point Transformer", "DuMLP-Pin"]
    assert axes.get_ylabel() == "accuracy, last of 60 epochs (%)"


def test_broadcasts_are_a_curve_beside_the_papers(
    tmp_path: Path, drawn: list[Figure], run: Run
) -> None:
    write_runs(tmp_path, "table8", count=3, seeds_at_once=1)
    run("figure", "broadcasts", tmp_path, "--out", tmp_path / "b.png")
    (axes,) = drawn[0].axes
    paper = np.asarray(axes.lines[0].get_xydata())
    np.testing.assert_allclose(paper[:, 1], [83.5, 84.7, 84.9, 84.6, 84.2, 83.2])
    assert len(axes.containers) == 2
    for container in axes.containers:
        curve = np.asarray(container[0].get_xydata())
        np.testing.assert_allclose(curve, [[5, 90.1], [6, 91.1], [7, 92.1]])


@pytest.mark.parametrize("name", ["activations", "broadcasts", "costs"])
def test_without_results_the_command_for_them_is_named(name: str, tmp_path: Path, run: Run) -> None:
    errors = run("figure", name, tmp_path, "--out", tmp_path / "x.png", fails=True).errors
    assert re.search(r"holds no run of \w+: dumlp-pin reproduce \w+ --run\n$", errors)
