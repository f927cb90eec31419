"""How runs went, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dumlp_pin.figures._canvas import figure_at
from dumlp_pin.training.results import Row


def draw_curves(path: Path, runs: Mapping[str, Sequence[Row]], metric: str) -> None:
    """Training loss and a metric on the scored sets, one line a run."""
    with figure_at(path, 9, 3.6) as figure:
        loss, score = figure.subplots(1, 2)
        for name, history in runs.items():
            epochs = [row["epoch"] for row in history]
            loss.plot(epochs, [row["loss"] for row in history], label=name)
            score.plot(epochs, [100 * row[metric] for row in history], label=name)
        loss.set(xlabel="epoch", ylabel="training loss", yscale="log")
        score.set(xlabel="epoch", ylabel=f"{metric.replace('_', ' ')} on test (%)")
        score.legend(frameon=False)
        for axes in (loss, score):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3)
