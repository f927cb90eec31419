"""What our numbers say about the paper's, in words that the seeds can bear."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dumlp_pin.training.paper import Row, Table
from dumlp_pin.training.reproduce import SEEDS
from dumlp_pin.training.results import mean_and_spread


def difference(table: Table, row: Row, ours: Sequence[float]) -> str | None:
    """One sentence on how our scores, one a seed, compare with what a row prints, if it does.

    >>> from dumlp_pin.training.paper import get_table
    >>> table = get_table("table3")
    >>> difference(table, table.rows[-1], [92.2, 92.4, 92.3])
    '0.00 from the paper, within the noise of 0.21.'
    >>> difference(table, table.rows[-1], [91.2, 91.4, 91.3])
    '1.00 below the paper, more than the noise of 0.21.'
    """
    if row.value is None:
        return None
    mean, spread = mean_and_spread(ours)
    gap = mean - row.value
    size = f"{abs(gap):.2f}"
    where = "from" if float(size) == 0 else "above" if gap > 0 else "below"
    if spread is None:
        return f"{size} {where} the paper; with one seed nobody can tell whether that is noise."
    variance = spread**2 / len(ours) + (row.spread or 0) ** 2 / SEEDS
    noise = 2 * math.sqrt(variance) + 0.5 * 10**-table.decimals
    verdict = "within" if abs(gap) <= noise else "more than"
    return f"{size} {where} the paper, {verdict} the noise of {noise:.2f}."


def order(table: Table, ours: Mapping[str, Sequence[float]]) -> str | None:
    """Whether rows that differ here by more than noise do so in the paper's order.

    `ours` has the scores of each row by its label. Rows with fewer than two are in no pair, nor are
    two that the paper has equal.

    >>> from dumlp_pin.training.paper import get_table
    >>> table = get_table("table6")
    >>> order(table, {"1 x 1024": [91.4, 91.5], "2 x 512": [91.9, 92.0], "4 x 256": [92.0, 92.1]})
    'Of 3 pairs of rows 2 differ here by more than noise: 1 in the order of the paper,
    1 in the other (4 x 256 above 1 x 1024).'
    """
    rows = [row for row in table.rows if row.value is not None and len(ours.get(row.label, ())) > 1]
    pairs = [(a, b) for index, a in enumerate(rows) for b in rows[:index] if a.value != b.value]
    if not pairs:
        return None
    apart = [pair for pair in pairs if _apart(*(ours[row.label] for row in pair))]
    reversed_pairs = []
    for a, b in apart:
        high, low = (a, b) if _mean(ours[a.label]) > _mean(ours[b.label]) else (b, a)
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


def first(table: Table, ours: Mapping[str, Sequence[float]]) -> str | None:
    """Which of the rows with at least two seeds is best, and which are not told from it.

    >>> from dumlp_pin.training.paper import get_table
    >>> first(get_table("table1"), {"PointNet": [0.8, 0.9], "S": [0.7, 0.9], "L": [0.5, 0.51]})
    'First is L.'
    >>> first(get_table("table3"), {"PointNet": [90.8, 90.9], "PCT": [90.7, 90.9], "S": [1, 2]})
    'First is PointNet; within noise of it: PCT.'
    """
    means = {label: _mean(scores) for label, scores in ours.items() if len(scores) > 1}
    if len(means) < 2:
        return None
    best = (min if table.is_error else max)(means, key=lambda label: means[label])
    equal = [label for label in means if label != best and not _apart(ours[label], ours[best])]
    return f"First is {best}" + (f"; within noise of it: {', '.join(equal)}." if equal else ".")


def _apart(first: Sequence[float], second: Sequence[float]) -> bool:
    variance = 0.0
    for values in (first, second):
        _, spread = mean_and_spread(values)
        variance += (spread or 0) ** 2 / len(values)
    return abs(_mean(first) - _mean(second)) > 2 * math.sqrt(variance)


def _mean(values: Sequence[float]) -> float:
    return mean_and_spread(values)[0]
