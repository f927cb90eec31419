"""The columns x y z and, where there are any, nx ny nz, found among others and read in chunks.

A chunk is (n, 3) or (n, 6) float64: coordinates of a map have more digits than float32.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from dumlp_pin.data.checks import DataError

CHUNK = 2**16  # points that are read at once
LONGEST_LINE = 2**16  # characters; a file with a longer one is no text

COORDINATES = ("x", "y", "z")
NORMALS = (("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z"))

Chunks = Iterator[np.ndarray]


def find_columns(names: Sequence[str], path: Path) -> list[int]:
    """Where among `names` the coordinates stand, and behind them the normal.

    >>> find_columns(["id", "X", "Y", "Z", "nz", "ny", "nx"], Path("cloud.csv"))
    [1, 2, 3, 6, 5, 4]
    """
    names = [name.strip().strip('"').lower() for name in names]
    if not set(names).issuperset(COORDINATES):
        raise DataError(f"{path}: expected columns x, y and z, found {', '.join(names) or 'none'}")
    normal = next((each for each in NORMALS if set(names).issuperset(each)), ())
    return [names.index(name) for name in (*COORDINATES, *normal)]


def unnamed_columns(count: int, path: Path) -> list[int]:
    """The first six columns, or three; whether the last of six are a normal, their length tells."""
    if count < 3:
        raise DataError(f"{path}: expected 3 columns or more, got {count}")
    return list(range(6 if count >= 6 else 3))


def text_lines(file: TextIO, path: Path) -> Iterator[str]:
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise DataError(f"{path}: is no text, it has a line of {LONGEST_LINE:,} characters")
        yield line


def text_chunks(
    lines: Iterator[str],
    path: Path,
    columns: Sequence[int],
    separator: str | None = None,
    count: int | None = None,
) -> Chunks:
    """Lines of numbers; exactly `count` of them, where a header gives it."""
    left = itertools.repeat(CHUNK) if count is None else _in_chunks(count)
    found = 0
    for size in left:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # there being no more lines is no fault
            chunk = np.loadtxt(
                lines, delimiter=separator, usecols=columns, ndmin=2, max_rows=size
            ).reshape(-1, len(columns))
        found += len(chunk)
        yield chunk
        if len(chunk) < size:
            break
    if count is not None and found < count:
        raise DataError(f"{path}: is cut off: expected {count:,} points, got {found:,}")


@dataclass(frozen=True)
class Field:
    """One value of a binary record, or several of a kind."""

    name: str
    dtype: str
    count: int = 1

    @property
    def size(self) -> int:
        return np.dtype(self.dtype).itemsize * self.count


def record_chunks(path: Path, fields: Sequence[Field], offset: int, count: int) -> Chunks:
    """Binary records that follow one another from `offset` on."""
    columns = find_columns([field.name for field in fields], path)
    *starts, length = itertools.accumulate((field.size for field in fields), initial=0)
    size = path.stat().st_size
    if size < offset + count * length:
        raise DataError(
            f"{path}: is cut off: {count:,} points end at byte {offset + count * length:,}, "
            f"the file at {size:,}"
        )
    if not count:
        return
    record = np.dtype(
        {
            "names": [str(column) for column in columns],
            "formats": [fields[column].dtype for column in columns],
            "offsets": [starts[column] for column in columns],
            "itemsize": length,
        }
    )
    records = np.memmap(path, record, "r", offset, (count,))
    start = 0
    for size in _in_chunks(count):
        chunk = records[start : start + size]
        yield np.stack([chunk[str(column)].astype(np.float64) for column in columns], -1)
        start += size


def _in_chunks(count: int) -> Iterator[int]:
    """The sizes of chunks that make `count` together.

    >>> list(_in_chunks(2 * CHUNK + 5)) == [CHUNK, CHUNK, 5]
    True
    """
    for start in range(0, count, CHUNK):
        yield min(CHUNK, count - start)
