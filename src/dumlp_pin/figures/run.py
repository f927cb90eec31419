"""The pictures that a training run ends with."""

from __future__ import annotations

import json
from pathlib import Path

from dumlp_pin.figures.confusion import draw_confusion
from dumlp_pin.figures.curves import draw_curves


def draw_run(folder: Path) -> list[Path]:
    """curves.png and, for a classifier of sets, confusion.png, from what a run has written."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    history = [json.loads(line) for line in lines]
    drawn = [folder / "curves.png"]
    draw_curves(drawn[0], {result["recipe"]["name"]: history}, result["headline"])
    if result["confusion"]:
        drawn.append(folder / "confusion.png")
        draw_confusion(drawn[1], result["confusion"], result["class_names"])
    return drawn
