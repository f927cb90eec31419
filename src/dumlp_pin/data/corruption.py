"""What goes wrong with sets in the world, at a known strength: to see what a model bears.

Elements are (B, N, F). The first `place` of their features say where they are, two of a pixel and
three of a point, y upwards; a normal after the place of a point turns with it. Labels are (B, N),
one an element, or None. They follow their elements; what is added comes last and has no label.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

Labels = Tensor | None
LEAST = 16  # elements of the smallest sets


@dataclass(frozen=True)
class Corruption:
    """One change of a batch: `apply` takes elements, labels and the source of chance."""

    kind: str
    level: str
    apply: Callable[[Tensor, Labels, Generator], tuple[Tensor, Labels]]


def corruptions(elements: int, place: int) -> list[Corruption]:
    """All that a table of robustness has, for sets of so many elements at 2 or 3 coordinates.

    >>> [each.level for each in corruptions(64, place=2) if each.kind == "fewer elements"]
    ['32', '16']
    """
    counts, count = [], elements // 2
    while count >= LEAST:
        counts.append(count)
        count //= 2
    found = [Corruption("fewer elements", f"{n}", _bound(fewer, n)) for n in counts]
    for share in (0.25, 0.5, 0.75, 0.875):
        level = f"{100 * share:g} %"
        found.append(Corruption("dropped, others repeated", level, _bound(dropped, share)))
    for sigma in (0.01, 0.02, 0.05, 0.1):
        level = f"sigma {sigma}"
        found.append(Corruption("jittered", level, _bound(jittered, sigma, place)))
    for share in (0.01, 0.05, 0.1, 0.2):
        level = f"{100 * share:g} %"
        found.append(Corruption("outliers added", level, _bound(outliers, share, place)))
    for share in (0.5, 1.0, 3.0):
        level = f"{100 * share:g} % more"
        found.append(Corruption("duplicated", level, _bound(duplicated, share)))
    for degrees in (15, 45, 180):
        axis = "about the vertical" if place == 3 else "in the plane"
        level = f"up to {degrees}° {axis}"
        turn = _bound(rotated, math.radians(degrees), place)
        found.append(Corruption("rotated", level, turn))
    if place == 3:
        found.append(Corruption("rotated", "any way", _bound(rotated_any_way)))
    return found


def fewer(x: Tensor, labels: Labels, chance: Generator, count: int) -> tuple[Tensor, Labels]:
    """So many of the elements of each set, drawn by chance.

    >>> x, labels = torch.rand(2, 64, 3), torch.zeros(2, 64)
    >>> few, its_labels = fewer(x, labels, Generator(), 16)
    >>> few.shape, its_labels.shape
    (torch.Size([2, 16, 3]), torch.Size([2, 16]))
    """
    return _taken(x, labels, _shuffled(x, chance)[:, :count])


def dropped(x: Tensor, labels: Labels, chance: Generator, share: float) -> tuple[Tensor, Labels]:
    """This share of each set is gone; copies of what stayed stand in its place."""
    B, N, _ = x.shape
    kept = max(1, round(N * (1 - share)))
    order = _shuffled(x, chance)
    copies = torch.randint(kept, (B, N - kept), generator=chance)
    return _taken(x, labels, torch.cat((order[:, :kept], order.gather(1, copies)), 1), kept)


def jittered(
    x: Tensor, labels: Labels, chance: Generator, sigma: float, place: int
) -> tuple[Tensor, Labels]:
    """Every element is moved by Gaussian noise; shapes have a radius of about 1."""
    moved = x[..., :place] + sigma * torch.randn(*x.shape[:2], place, generator=chance)
    return torch.cat((moved, x[..., place:]), -1), labels


def outliers(
    x: Tensor, labels: Labels, chance: Generator, share: float, place: int
) -> tuple[Tensor, Labels]:
    """This share of the set's number comes on top, anywhere in the cube from -1 to 1.

    Such a point has any normal, such a pixel any grey.
    """
    B, N, width = x.shape
    count = max(1, round(N * share))
    where = 2 * torch.rand(B, count, place, generator=chance) - 1
    if width - place == 3:
        rest = F.normalize(torch.randn(B, count, 3, generator=chance), dim=-1)
    else:
        rest = torch.rand(B, count, width - place, generator=chance)
    return torch.cat((x, torch.cat((where, rest), -1)), 1), labels


def duplicated(x: Tensor, labels: Labels, chance: Generator, share: float) -> tuple[Tensor, Labels]:
    """This share of the set's number comes on top: copies of a quarter of the elements."""
    B, N, _ = x.shape
    order = _shuffled(x, chance)
    copies = torch.randint(max(1, N // 4), (B, round(N * share)), generator=chance)
    return _taken(x, labels, torch.cat((order, order.gather(1, copies)), 1), N)


def rotated(
    x: Tensor, labels: Labels, chance: Generator, largest: float, place: int
) -> tuple[Tensor, Labels]:
    """Each set turns by an angle of up to `largest`: about y, or in its plane."""
    angle = largest * (2 * torch.rand(len(x), generator=chance) - 1)
    cos, sin, one, no = angle.cos(), angle.sin(), torch.ones(len(x)), torch.zeros(len(x))
    if place == 2:
        rows = [(cos, -sin), (sin, cos)]
    else:
        rows = [(cos, no, sin), (no, one, no), (-sin, no, cos)]
    return _turned(x, torch.stack([torch.stack(row, -1) for row in rows], 1)), labels


def rotated_any_way(x: Tensor, labels: Labels, chance: Generator) -> tuple[Tensor, Labels]:
    """Each set turns by a rotation that is drawn evenly from all there are."""
    # A unit quaternion with even directions.
    w, i, j, k = F.normalize(torch.randn(len(x), 4, generator=chance), dim=-1).T
    rows = [
        (1 - 2 * (j * j + k * k), 2 * (i * j - k * w), 2 * (i * k + j * w)),
        (2 * (i * j + k * w), 1 - 2 * (i * i + k * k), 2 * (j * k - i * w)),
        (2 * (i * k - j * w), 2 * (j * k + i * w), 1 - 2 * (i * i + j * j)),
    ]
    return _turned(x, torch.stack([torch.stack(row, -1) for row in rows], 1)), labels


def _turned(x: Tensor, matrix: Tensor) -> Tensor:
    """Places, and normals after them, by matrices (B, d, d)."""
    d = matrix.shape[1]
    turned = [part @ matrix.mT if part.shape[-1] == d else part for part in x.split(d, dim=-1)]
    return torch.cat(turned, -1)


def _shuffled(x: Tensor, chance: Generator) -> Tensor:
    """(B, N): the positions of each set in an order of its own."""
    return torch.rand(x.shape[:2], generator=chance).argsort(1)


def _taken(
    x: Tensor, labels: Labels, index: Tensor, labelled: int | None = None
) -> tuple[Tensor, Labels]:
    """The elements at `index`, of which the first so many, or all, keep their labels."""
    taken = x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))
    return taken, None if labels is None else labels.gather(1, index[:, :labelled])


def _bound(
    function: Callable[..., tuple[Tensor, Labels]], *settings: float
) -> Callable[[Tensor, Labels, Generator], tuple[Tensor, Labels]]:
    return lambda x, labels, chance: function(x, labels, chance, *settings)
