"""Sets in groups that fit a processor's caches, and side by side in one tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dumlp_pin._parts import IN_PARTS

# Sets go side by side if no more than this share of them is padding, or so few rows that they cost
# less than another turn.
PADDING, FEW = 1 / 4, 512


def runs(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of sets of at most so many elements together, unless it is a single set.

    >>> list(runs([3, 3, 5, 12, 0, 1], most=8))
    [(0, 2), (2, 3), (3, 4), (4, 6)]
    """
    first = total = 0
    for b, size in enumerate(sizes):
        if first < b and total + size > most:
            yield first, b
            first, total = b, 0
        total += size
    if sizes:
        yield first, len(sizes)


def side_by_side(
    names: Sequence[str], factors: Sequence[Tensor], sizes: Sequence[int]
) -> Iterator[tuple[slice | Tensor, list[Tensor]]]:
    """Of sets in a row those that go together: which, and their factors (k, N, c).

    The padding of factors has what an activation makes nothing of. Empty sets are left out.
    """
    if min(sizes) == max(sizes):
        if sizes[0]:
            yield slice(None), [factor.view(len(sizes), sizes[0], -1) for factor in factors]
        return
    counts = torch.tensor(sizes)
    starts = counts.cumsum(0) - counts
    counts, order = counts.sort()
    for first, last in alike(counts.tolist()):
        N = int(counts[last - 1])
        element = torch.arange(N)
        real = element < counts[first:last, None]
        index = (starts[order[first:last], None] + element).where(real, 0).flatten()
        padding = (~real).flatten().nonzero().flatten()
        together = []
        for name, factor in zip(names, factors, strict=True):
            nothing = -torch.inf if IN_PARTS[name].shifted else 0
            padded = factor.index_select(0, index).index_fill_(0, padding, nothing)
            together.append(padded.view(last - first, N, -1))
        yield order[first:last], together


def alike(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of rising sizes that are padded to the last of them; nothing is 0 there.

    >>> list(alike([0, 3, 3, 900, 1000, 7000, 9000]))
    [(1, 3), (3, 5), (5, 7)]
    """
    first = sum(size == 0 for size in sizes)
    total = 0
    for b in range(first, len(sizes)):
        padded = sizes[b] * (b + 1 - first)
        if first < b and padded - total - sizes[b] > max(FEW, PADDING * padded):
            yield first, b
            first, total = b, 0
        total += sizes[b]
    if first < len(sizes):
        yield first, len(sizes)
