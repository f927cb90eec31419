"""Clouds that are tables: text, NumPy, Parquet and LAS."""

from __future__ import annotations

import itertools
import zipfile
from pathlib import Path

import numpy as np

from dumlp_pin._errors import need
from dumlp_pin.data.checks import DataError, reason
from dumlp_pin.points.columns import (
    CHUNK,
    Chunks,
    find_columns,
    text_chunks,
    text_lines,
    unnamed_columns,
)

LARGEST_MEMBER = 2**31  # bytes; what a zip holds is unpacked into memory


def read_text(path: Path) -> Chunks:
    """Numbers between spaces, commas or semicolons, below the names of columns or none."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        lines = text_lines(file, path)
        columns, words, separator = None, [], None
        for line in lines:
            separator = next((mark for mark in ",;" if mark in line), None)
            words = line.strip().lstrip("#/").split(separator)
            if not words or _is_number(words[0]):
                break
            if {"x", "y", "z"} <= {word.strip().strip('"').lower() for word in words}:
                columns = find_columns(words, path)
            elif line.strip() and not line.startswith(("#", "//")):
                raise DataError(
                    f"{path}: expected numbers, or columns x, y and z, got {line!r:.60}"
                )
        else:
            return
        columns = columns or unnamed_columns(len(words), path)
        yield from text_chunks(itertools.chain([line], lines), path, columns, separator)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def read_npy(path: Path) -> Chunks:
    """An array (N, 3) or (N, 6), mapped into memory."""
    yield from _array_chunks(np.lib.format.open_memmap(path, "r"), path)


def read_npz(path: Path) -> Chunks:
    """The array `points`, beside it `normals` where there are any; or the only array."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if "points.npy" not in names and len(names) != 1:
            known = ", ".join(name.removesuffix(".npy") for name in names)
            raise DataError(f"{path}: expected an array called points, found {known or 'none'}")
        arrays = []
        for name in ("points.npy", "normals.npy") if "points.npy" in names else names:
            if name not in names:
                continue
            if archive.getinfo(name).file_size > LARGEST_MEMBER:
                raise DataError(f"{path}: {name} has more than 2 GB: save it as a .npy file")
            with archive.open(name) as file:
                arrays.append(np.lib.format.read_array(file, allow_pickle=False))
    yield from _array_chunks(np.concatenate(arrays, -1), path)


def _array_chunks(array: np.ndarray, path: Path) -> Chunks:
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise DataError(
            f"{path}: expected numbers of shape (N, 3) or (N, 6), "
            f"got {array.dtype} of shape {array.shape}"
        )
    columns = unnamed_columns(array.shape[1], path)
    for start in range(0, len(array), CHUNK):
        yield array[start : start + CHUNK, : len(columns)].astype(np.float64)


def read_parquet(path: Path) -> Chunks:
    with need("pyarrow.parquet", "points").ParquetFile(path) as file:
        names = file.schema_arrow.names
        wanted = [names[column] for column in find_columns(names, path)]
        for batch in file.iter_batches(CHUNK, columns=wanted):
            columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in wanted]
            yield np.stack(columns, -1).astype(np.float64)


def read_las(path: Path) -> Chunks:
    """Coordinates in the units of the map, as the header scales and shifts them."""
    if path.suffix.lower() == ".laz":
        need("lazrs", "points")
    laspy, found = need("laspy", "points"), 0
    try:
        with laspy.open(path) as file:
            for chunk in file.chunk_iterator(CHUNK):
                found += len(chunk)
                yield np.stack((chunk.x, chunk.y, chunk.z), -1)
            count = file.header.point_count
    except laspy.errors.LaspyException as error:
        raise DataError(f"{path}: is no LAS file: {reason(error)}") from error
    if found != count:
        raise DataError(f"{path}: is cut off: expected {count:,} points, got {found:,}")
