"""What accuracy costs: parameters, multiply-adds and training time of every system."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dumlp_pin._errors import need
from dumlp_pin.figures._canvas import figure_at
from dumlp_pin.training.results import mean_and_spread

OURS, OTHERS = "tab:red", "0.35"
MANY = 100  # times the least cost; beyond it, ticks only at powers of ten


@dataclass(frozen=True)
class System:
    """One system, with its scores in %, one a seed."""

    name: str
    scores: Sequence[float]
    parameters: int
    macs: int
    seconds: float  # of training one seed
    is_ours: bool


def draw_costs(path: Path, systems: Sequence[System], epochs: int) -> None:
    """Accuracy after so many epochs against each cost, on a logarithmic scale.

    Bars are standard deviations.
    """
    costs = {
        "parameters (M)": [system.parameters / 1e6 for system in systems],
        "multiply-adds a shape (M)": [system.macs / 1e6 for system in systems],
        "training time of a seed (min)": [system.seconds / 60 for system in systems],
    }
    ticker = need("matplotlib.ticker", "figures")
    with figure_at(path, 11, 3.8) as figure:
        panels = figure.subplots(1, len(costs), sharey=True)
        for axes, (title, values) in zip(panels, costs.items(), strict=True):
            middle = math.sqrt(min(values) * max(values))
            for system, cost in zip(systems, values, strict=True):
                mean, spread = mean_and_spread(system.scores)
                colour = OURS if system.is_ours else OTHERS
                axes.errorbar(cost, mean, spread, fmt="o", color=colour, capsize=2)
                side = -1 if cost > middle else 1  # names lie towards the middle
                axes.annotate(
                    system.name,
                    (cost, mean),
                    xytext=(6 * side, 3),
                    textcoords="offset points",
                    ha="right" if side < 0 else "left",
                    fontsize=8,
                    color=colour,
                    weight="bold" if system.is_ours else "normal",
                )
            axes.set(xlabel=title, xscale="log")
            axes.margins(x=0.12, y=0.1)
            ticks = (1,) if max(values) > MANY * min(values) else (1, 3)
            axes.xaxis.set_major_locator(ticker.LogLocator(subs=ticks))
            axes.xaxis.set_major_formatter("{x:,g}")
            axes.xaxis.set_minor_locator(ticker.NullLocator())
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel(f"accuracy, last of {epochs} epochs (%)")
