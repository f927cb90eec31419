"""Pictures are drawn from what a run leaves, and say what the numbers say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imread

from dumlp_pin.figures import draw_confusion, draw_curves
from dumlp_pin.figures.run import draw_run
from dumlp_pin.training.trainer import train
from tests.training.runs import quick


def test_curves_show_each_epoch_of_each_run(tmp_path: Path, drawn: list[Figure]) -> None:
    runs = {
        "ours": [
            {"epoch": 1, "loss": 2.0, "accuracy": 0.5},
            {"epoch": 2, "loss": 1.0, "accuracy": 0.75},
        ],
        "theirs": [{"epoch": 1, "loss": 3.0, "accuracy": 0.25}],
    }
    draw_curves(tmp_path / "curves.png", runs, "accuracy")
    loss, score = drawn[0].axes
    lines = {line.get_label(): line for line in score.get_lines()}
    np.testing.assert_array_equal(lines["ours"].get_xydata(), [[1, 50], [2, 75]])
    np.testing.assert_array_equal(lines["theirs"].get_xydata(), [[1, 25]])
    np.testing.assert_array_equal(loss.get_lines()[0].get_ydata(), [2, 1])


def test_a_confusion_has_its_counts_and_shares(tmp_path: Path, drawn: list[Figure]) -> None:
    draw_confusion(tmp_path / "confusion.png", [[9, 1, 0], [0, 0, 0], [2, 0, 2]], "abc")
    (axes,) = drawn[0].axes
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts == {(0, 0): "9", (1, 0): "1", (0, 2): "2", (2, 2): "2"}  # predicted, true
    shades = axes.get_images()[0].get_array()
    assert shades is not None
    np.testing.assert_allclose(shades**2, [[0.9, 0.1, 0], [0, 0, 0], [0.5, 0, 0.5]], atol=1e-6)


def test_counts_of_many_classes_are_not_printed(tmp_path: Path, drawn: list[Figure]) -> None:
    draw_confusion(tmp_path / "confusion.png", np.eye(40, dtype=int).tolist(), ["name"] * 40)
    assert not drawn[0].axes[0].texts


def test_a_run_ends_with_pictures(tmp_path: Path, drawn: list[Figure]) -> None:
    result = train(quick(), seed=0, out=tmp_path, device="cpu")
    assert draw_run(tmp_path) == [tmp_path / "curves.png", tmp_path / "confusion.png"]
    _, score = drawn[0].axes
    drawn_scores = np.asarray(score.get_lines()[0].get_ydata())
    assert drawn_scores[-1] == 100 * result["last"]["overall_accuracy"]
    for name in ("curves.png", "confusion.png"):
        assert imread(tmp_path / name).std() > 0.05  # not blank
