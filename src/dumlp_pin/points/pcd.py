"""PCD, the format of the Point Cloud Library: text, binary and compressed."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dumlp_pin.data.checks import DataError
from dumlp_pin.points.columns import (
    Chunks,
    Field,
    find_columns,
    record_chunks,
    text_chunks,
    text_lines,
)

LONGEST_HEADER = 2**16  # bytes; a file with a longer one is something else
LARGEST_COMPRESSED = 2**30  # bytes when unpacked, in memory


@dataclass(frozen=True)
class _Header:
    fields: list[Field]
    count: int
    encoding: str
    offset: int


def read_pcd(path: Path) -> Chunks:
    with path.open("rb") as file:
        header = _read_header(file, path)
        if header.encoding == "ascii":
            text = io.TextIOWrapper(file, "utf-8", "replace")
            chunks = _ascii_chunks(text, path, header)
        elif header.encoding == "binary":
            chunks = record_chunks(path, header.fields, header.offset, header.count)
        elif header.encoding == "binary_compressed":
            chunks = _compressed_chunks(file, path, header)
        else:
            raise DataError(f"{path}: DATA is {header.encoding!r}, expected ascii or binary")
        for chunk in chunks:
            # Where a depth camera saw nothing, the format has NaN.
            yield chunk[np.isfinite(chunk).all(1)]


def _read_header(file: BinaryIO, path: Path) -> _Header:
    entries: dict[str, list[str]] = {}
    while "DATA" not in entries:
        line = file.readline(LONGEST_HEADER)
        key, *words = line.decode("ascii", "replace").partition("#")[0].split() or [""]
        entries[key.upper()] = words
        if not line or file.tell() >= LONGEST_HEADER:
            raise DataError(f"{path}: is no PCD file, its header has no DATA")
    try:
        names, sizes, types = entries["FIELDS"], entries["SIZE"], entries["TYPE"]
        counts = [int(count) for count in entries.get("COUNT", ["1"] * len(names))]
        kinds = [f"<{kind.lower()}{size}" for kind, size in zip(types, sizes, strict=True)]
        fields = [Field(*each) for each in zip(names, kinds, counts, strict=True)]
        count = int(entries["POINTS"][0])
        encoding = entries["DATA"][0].lower()
    except (KeyError, IndexError) as error:
        raise DataError(f"{path}: its header has no {error}") from error
    if count < 0 or any(field.count < 1 or field.dtype[1] not in "fiu" for field in fields):
        raise DataError(f"{path}: its header makes no sense: {count} points of {fields}")
    return _Header(fields, count, encoding, file.tell())


def _ascii_chunks(text: io.TextIOWrapper, path: Path, header: _Header) -> Chunks:
    # A field of several values takes several columns.
    names = [field.name for field in header.fields for _ in range(field.count)]
    columns = find_columns(names, path)
    return text_chunks(text_lines(text, path), path, columns, count=header.count)


def _compressed_chunks(file: BinaryIO, path: Path, header: _Header) -> Chunks:
    """All values of the first field, then all of the next, compressed together."""
    packed_size, size = struct.unpack("<II", file.read(8))
    expected = header.count * sum(field.size for field in header.fields)
    if size != expected or size > LARGEST_COMPRESSED:
        raise DataError(f"{path}: expected {expected:,} bytes unpacked, 1 GB at most, got {size:,}")
    raw = unpack_lzf(file.read(packed_size), size)
    columns, start = [], 0
    for field in header.fields:
        values = np.frombuffer(raw, field.dtype, header.count * field.count, start)
        columns.append(values[:: field.count].astype(np.float64))
        start += header.count * field.size
    wanted = find_columns([field.name for field in header.fields], path)
    yield np.stack([columns[column] for column in wanted], -1)


def unpack_lzf(packed: bytes, size: int) -> bytes:
    """LZF: literal runs, and references to what was unpacked before.

    >>> unpack_lzf(bytes([2]) + b"abc" + bytes([0b001_00000, 2]), 6)
    b'abcabc'
    """
    unpacked, place = bytearray(), 0
    while place < len(packed) and len(unpacked) <= size:
        control = packed[place]
        place += 1
        if control < 32:
            unpacked += packed[place : place + control + 1]
            place += control + 1
            continue
        length = control >> 5
        if length == 7:
            length += packed[place]
            place += 1
        distance = ((control & 31) << 8) + packed[place] + 1
        place += 1
        start = len(unpacked) - distance
        if start < 0:
            raise ValueError("compressed data refer to what lies before them")
        for index in range(start, start + length + 2):  # it may reach into what it makes
            unpacked.append(unpacked[index])
    if len(unpacked) != size:
        raise ValueError(f"compressed data unpack to {len(unpacked):,} bytes instead of {size:,}")
    return bytes(unpacked)
