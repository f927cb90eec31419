"""From columns with gaps and words to the rows that a network takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from dumlp_pin._errors import nearest
from dumlp_pin.sets import SetBatch
from dumlp_pin.tables import ColumnSets, Kind

MOST_WORDS = 1000  # in one column: more would be names, not categories
FEWEST_FOR_RANKS = 1000  # sets; fewer learn better from fewer columns
QUANTILES = 33
FARTHEST = 3**0.5  # the largest rank: ranks from -FARTHEST to FARTHEST have deviation 1


@dataclass(frozen=True)
class Numbers:
    """A column to standardise; with `knots` its rank, where a value stands among those of `fit`.

    Few values far from all others leave no difference between these in what is standardised; the
    rank keeps it. It is `ranks` at `knots`, and linear between. With `may_miss` a last column says
    where a value was missing.
    """

    mean: float
    scale: float
    may_miss: bool
    knots: tuple[float, ...] = ()
    ranks: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        return 1 + bool(self.knots) + self.may_miss

    def write(self, values: np.ndarray, name: str, out: np.ndarray) -> None:
        if values.dtype == object:
            words = [word for word in values if isinstance(word, str)]
            if words:
                raise TypeError(f"column {name!r} held numbers in fit, and now {words[0]!r}")
            values = np.full(len(values), np.nan)
        missing = np.isnan(values)
        out[:, 0] = np.where(missing, 0, (values - self.mean) / self.scale)
        if self.knots:
            out[:, 1] = np.where(missing, 0, np.interp(values, self.knots, self.ranks))
        if self.may_miss:
            out[:, -1] = missing

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Numbers:
        return cls(**{**saved, "knots": tuple(saved["knots"]), "ranks": tuple(saved["ranks"])})


@dataclass(frozen=True)
class Words:
    """A column to turn into one for each word; an unknown or missing word is zero in all."""

    words: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.words)

    def write(self, values: np.ndarray, name: str, out: np.ndarray) -> None:
        if values.dtype != object and not np.isnan(values).all():
            raise TypeError(f"column {name!r} held words in fit, and now numbers")
        place = {word: index for index, word in enumerate(self.words)}
        where = np.fromiter((place.get(word, -1) for word in values), np.int64, len(values))
        out[:] = 0
        known = np.flatnonzero(where >= 0)
        out[known, where[known]] = 1


class ElementEncoder:
    """Learns from sets how to make features of their elements.

    Sums over a set that are weighted means do not know how large it is. So the size of its set, on
    a logarithmic scale, is a feature of each element, unless all sets it was fitted on have one
    size.

    >>> columns = {"price": np.array([1.0, 3.0, np.nan]), "kind": np.array(["a", "b", "a"], object)}
    >>> sets = ColumnSets(columns, np.array([0, 3]), np.array([0]))
    >>> ElementEncoder.fitted(sets).encode(sets).rows  # price, missing, a, b
    tensor([[-1.,  0.,  1.,  0.],
            [ 1.,  0.,  0.,  1.],
            [ 0.,  1.,  1.,  0.]])
    """

    def __init__(self, columns: Mapping[str, Numbers | Words], size: Numbers | None) -> None:
        self.columns, self.size = dict(columns), size

    @classmethod
    def fitted(cls, sets: ColumnSets) -> ElementEncoder:
        ranked = len(sets) >= FEWEST_FOR_RANKS
        columns = {name: _learn(name, values, ranked) for name, values in sets.columns.items()}
        size = None
        if len(set(sets.sizes.tolist())) > 1:
            size = _learn_numbers(np.log(sets.sizes), ranked)
        return cls(columns, size)

    @property
    def width(self) -> int:
        """F, how many features an element gets."""
        columns = [*self.columns.values(), *([self.size] if self.size else [])]
        return sum(column.width for column in columns)

    @property
    def kinds(self) -> dict[str, Kind]:
        """What each column holds, as a reader of files needs to know."""
        return {
            name: "number"
            if isinstance(column, Numbers)
            else "flag"
            if set(column.words) <= {"true", "false"}
            else "word"
            for name, column in self.columns.items()
        }

    def encode(self, sets: ColumnSets) -> SetBatch:
        rows = np.empty((sets.offsets[-1], self.width), dtype=np.float32)
        start = 0
        for name, column in self.columns.items():
            if name not in sets.columns:
                raise KeyError(f"the sets have no column {name!r}{nearest(name, sets.columns)}")
            values = sets.columns[name]
            _check_finite(name, values)
            column.write(values, name, rows[:, start : start + column.width])
            start += column.width
        if self.size is not None:
            self.size.write(np.repeat(np.log(sets.sizes), sets.sizes), "size", rows[:, start:])
        return SetBatch(torch.from_numpy(rows), torch.from_numpy(sets.offsets.astype(np.int64)))

    def to_json(self) -> dict[str, Any]:
        columns = {name: asdict(column) for name, column in self.columns.items()}
        return {"columns": columns, "size": None if self.size is None else asdict(self.size)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ElementEncoder:
        columns = {
            name: Words(tuple(saved["words"])) if "words" in saved else Numbers.from_json(saved)
            for name, saved in content["columns"].items()
        }
        size = content["size"]
        return cls(columns, None if size is None else Numbers.from_json(size))


def _learn(name: str, values: np.ndarray, ranked: bool) -> Numbers | Words:
    if values.dtype != object:
        _check_finite(name, values)
        return _learn_numbers(values, ranked)
    words = sorted({word for word in values if isinstance(word, str)})
    if len(words) > MOST_WORDS:
        raise ValueError(
            f"column {name!r} has {len(words)} different words, which is more than {MOST_WORDS}: "
            "leave it out, or join them into fewer categories"
        )
    return Words(tuple(words))


def _learn_numbers(values: np.ndarray, ranked: bool) -> Numbers:
    missing = np.isnan(values)
    known = values[~missing].astype(np.float64)
    mean, scale = (float(known.mean()), float(known.std())) if len(known) else (0.0, 1.0)
    # What is constant but for rounding is not blown up.
    constant = scale <= 1e-12 * max(1.0, abs(mean))
    if constant or not ranked:
        return Numbers(mean, 1.0 if constant else scale, bool(missing.any()))
    quantiles = np.quantile(known, np.linspace(0, 1, QUANTILES))
    ranks = np.linspace(-FARTHEST, FARTHEST, QUANTILES)
    # A value that many have gets the mean of their ranks.
    knots, which, counts = np.unique(quantiles, return_inverse=True, return_counts=True)
    ranks = np.bincount(which, ranks) / counts
    return Numbers(mean, scale, bool(missing.any()), tuple(knots.tolist()), tuple(ranks.tolist()))


def _check_finite(name: str, values: np.ndarray) -> None:
    infinite = values.dtype != object and np.isinf(values)
    if np.any(infinite):
        raise ValueError(f"column {name!r} is infinite in {np.sum(infinite)} of {len(values)} rows")
