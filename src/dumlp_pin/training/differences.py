"""What our numbers say about the paper's, in words that the seeds can bear."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from statistics import fmean

from dumlp_pin.training.paper import Row, Table
from dumlp_pin.training.reproduce import SEEDS

Scores = Mapping[str, Sequence[float]]  # of each row, one a seed, by the row's label


def spreads(ours: Scores) -> dict[str, float]:
    """The standard deviation to reckon with for each row that was run, if any row has two seeds.

    It is the row's own, or that of all rows together where that is larger: a few seeds can lie
    close to each other by chance, and one seed says nothing of its own.

    >>> spreads({"a": [90.0, 92.0], "b": [91.0, 91.0], "c": [90.0], "d": []})
    {'a': 1.414..., 'b': 1.0, 'c': 1.0}
    """
    several = [scores for scores in ours.values() if len(scores) > 1]
    if not several:
        return {}
    squares = sum(statistics.variance(scores) * (len(scores) - 1) for scores in several)
    together = math.sqrt(squares / sum(len(scores) - 1 for scores in several))
    return {
        label: max(together, statistics.stdev(scores) if len(scores) > 1 else 0.0)
        for label, scores in ours.items()
        if scores
    }


def difference(table: Table, row: Row, ours: Scores) -> str | None:
    """One sentence on how our scores compare with what a row prints, if it prints something.

    >>> from dumlp_pin.training.paper import get_table
    >>> table = get_table("table3")
    >>> difference(table, table.rows[-1], {"DuMLP-Pin": [92.2, 92.4, 92.3]})
    '0.00 from the paper, within the noise of 0.21.'
    >>> difference(table, table.rows[-1], {"DuMLP-Pin": [91.2, 91.4, 91.3]})
    '1.00 below the paper, more than the noise of 0.21.'
    >>> difference(table, table.rows[-1], {"DuMLP-Pin": [91.2]})
    '1.10 below the paper; one seed does not tell whether that is noise.'
    """
    if row.value is None:
        return None
    scores = ours[row.label]
    gap = fmean(scores) - row.value
    size = f"{abs(gap):.2f}"
    where = "from" if float(size) == 0 else "above" if gap > 0 else "below"
    spread = spreads(ours).get(row.label)
    if spread is None:
        return f"{size} {where} the paper; one seed does not tell whether that is noise."
    variance = spread**2 / len(scores) + (row.spread or 0) ** 2 / SEEDS
    noise = 2 * math.sqrt(variance) + 0.5 * 10**-table.decimals
    verdict = "within" if abs(gap) <= noise else "more than"
    return f"{size} {where} the paper, {verdict} the noise of {noise:.2f}."


def order(table: Table, ours: Scores) -> str | None:
    """Whether rows that differ here by more than noise do so in the paper's order.

    Two rows that the paper has equal are in no order.

    >>> from dumlp_pin.training.paper import get_table
    >>> table = get_table("table6")
    >>> order(table, {"1 x 1024": [91.4, 91.5], "2 x 512": [91.9, 92.0], "4 x 256": [92.0, 92.1]})
    'Of 3 pairs of rows 2 differ here by more than noise: 1 in the order of the paper,
    1 in the other (4 x 256 above 1 x 1024).'
    """
    known = spreads(ours)
    rows = [row for row in table.rows if row.value is not None and row.label in known]
    pairs = [(a, b) for index, a in enumerate(rows) for b in rows[:index] if a.value != b.value]
    if not pairs:
        return None
    apart = [(a, b) for a, b in pairs if _apart(a.label, b.label, ours, known)]
    reversed_pairs = []
    for a, b in apart:
        high, low = (a, b) if fmean(ours[a.label]) > fmean(ours[b.label]) else (b, a)
        if (high.value or 0) < (low.value or 0):
            reversed_pairs.append(f"{high.label} above {low.label}")
    what = "pair" if len(pairs) == 1 else "pairs"
    text = f"Of {len(pairs)} {what} of rows {len(apart)} differ here by more than noise"
    if not apart:
        return f"{text}."
    text += f": {len(apart) - len(reversed_pairs)} in the order of the paper"
    if reversed_pairs:
        text += f", {len(reversed_pairs)} in the other ({'; '.join(reversed_pairs)})"
    return f"{text}."


def first(table: Table, ours: Scores) -> str | None:
    """Which row is best, and which are not told from it.

    >>> from dumlp_pin.training.paper import get_table
    >>> first(get_table("table1"), {"PointNet": [0.8, 0.9], "S": [0.7, 0.9], "L": [0.5, 0.51]})
    'First is L.'
    >>> first(get_table("table3"), {"PointNet": [90.8, 90.9], "PCT": [90.7, 90.9], "S": [89]})
    'First is PointNet; within noise of it: PCT.'
    """
    known = spreads(ours)
    if len(known) < 2:
        return None
    best = (min if table.is_error else max)(known, key=lambda label: fmean(ours[label]))
    equal = [label for label in known if label != best and not _apart(label, best, ours, known)]
    return f"First is {best}" + (f"; within noise of it: {', '.join(equal)}." if equal else ".")


def _apart(first: str, second: str, ours: Scores, known: Mapping[str, float]) -> bool:
    """Whether two rows' means differ by more than two standard errors."""
    variance = sum(known[label] ** 2 / len(ours[label]) for label in (first, second))
    return abs(fmean(ours[first]) - fmean(ours[second])) > 2 * math.sqrt(variance)
