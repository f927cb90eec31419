"""How many broadcast blocks pay: the paper's Table 8 as a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dumlp_pin.figures._canvas import figure_at
from dumlp_pin.training.results import mean_and_spread


def draw_broadcasts(
    path: Path,
    last: Mapping[int, Sequence[float]],
    best: Mapping[int, Sequence[float]],
    paper: Mapping[int, float],
) -> None:
    """Instance mIoU in % by the number of blocks; ours, one a seed, under both protocols."""
    with figure_at(path, 6, 3.8) as figure:
        axes = figure.subplots()
        axes.plot(list(paper), list(paper.values()), "o--", color="0.5", label="the paper's")
        for scores, fmt, alpha, label in (
            (best, "s:", 0.5, "ours, best epoch on test"),
            (last, "o-", 1.0, "ours, last epoch"),
        ):
            counts = sorted(scores)
            both = [mean_and_spread(scores[count]) for count in counts]
            means = [mean for mean, _ in both]
            spreads = [spread or 0.0 for _, spread in both]
            axes.errorbar(
                counts,
                means,
                spreads,
                fmt=fmt,
                alpha=alpha,
                color="tab:red",
                capsize=2,
                label=label,
            )
        axes.set(xlabel="broadcast blocks", ylabel="instance mIoU (%)", xticks=list(paper))
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
