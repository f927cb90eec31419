"""Predictions as CSV: to a file that is there whole or not at all, or to the screen."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from dumlp_pin._files import written_whole


def write_predictions(
    out: Path | None, names: Sequence[str], lines: Iterable[Sequence[Any]]
) -> None:
    """One line a prediction, below the names of the columns.

    >>> write_predictions(None, ["basket", "label"], [[7, "big"], [8, "small"]])
    basket,label
    7,big
    8,small
    """
    if out is None:
        _write(sys.stdout, names, lines)
        return
    if out.suffix.lower() != ".csv":
        raise ValueError(f"predictions are written as .csv, got {str(out)!r}")
    with written_whole(out) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        _write(file, names, lines)


def _write(file: TextIO, names: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    lines = iter(lines)
    first = next(lines, None)  # before the names: what cannot be answered leaves none behind
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    if first is not None:
        writer.writerow(first)
        writer.writerows(lines)
