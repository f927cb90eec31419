"""PLY: reads clouds and hands meshes on; writes clouds with coloured parts."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dumlp_pin._files import written_whole
from dumlp_pin.data.checks import DataError
from dumlp_pin.points.columns import (
    LONGEST_LINE,
    Chunks,
    Field,
    find_columns,
    record_chunks,
    text_chunks,
    text_lines,
)
from dumlp_pin.points.mesh import Mesh, load_by_trimesh

TYPES = {
    "char": "i1",
    "uchar": "u1",
    "short": "i2",
    "ushort": "u2",
    "int": "i4",
    "uint": "u4",
    "float": "f4",
    "double": "f8",
    "int8": "i1",
    "uint8": "u1",
    "int16": "i2",
    "uint16": "u2",
    "int32": "i4",
    "uint32": "u4",
    "float32": "f4",
    "float64": "f8",
}
ORDERS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}


@dataclass
class _Element:
    """Records of one kind; `None` stands for a property that is a list."""

    name: str
    count: int
    properties: list[Field | None] = field(default_factory=list)


@dataclass
class _Header:
    encoding: str
    elements: list[_Element]
    offset: int


def read_ply(path: Path) -> Mesh | Chunks:
    """A mesh if there are faces, a cloud otherwise."""
    with path.open("rb") as file:
        header = _read_header(file, path)
    if any(element.name == "face" and element.count for element in header.elements):
        return load_by_trimesh(path)
    return _read_cloud(path, header)


def _read_cloud(path: Path, header: _Header) -> Chunks:
    vertices = header.elements[0] if header.elements else _Element("nothing", 0)
    fields = [each for each in vertices.properties if each is not None]
    if vertices.name != "vertex" or len(fields) != len(vertices.properties):
        raise DataError(f"{path}: expected vertices of single numbers first, got {vertices.name}")
    if header.encoding != "ascii":
        yield from record_chunks(path, fields, header.offset, vertices.count)
        return
    columns = find_columns([each.name for each in fields], path)
    with path.open("rb") as file, io.TextIOWrapper(file, "utf-8", "replace") as text:
        file.seek(header.offset)
        yield from text_chunks(text_lines(text, path), path, columns, count=vertices.count)


def _read_header(file: BinaryIO, path: Path) -> _Header:
    if file.readline(LONGEST_LINE).strip() != b"ply":
        raise DataError(f"{path}: is no PLY file")
    encoding, elements = "", []
    while True:
        line = file.readline(LONGEST_LINE)
        match line.decode("ascii", "replace").split():
            case ["end_header"] if encoding:
                return _Header(encoding, elements, file.tell())
            case ["format", kind, _] if kind in ORDERS:
                encoding = kind
            case ["element", name, count] if count.isdecimal():
                elements.append(_Element(name, int(count)))
            case ["property", "list", _, _, _] if elements:
                elements[-1].properties.append(None)
            case ["property", kind, name] if elements and kind in TYPES:
                elements[-1].properties.append(Field(name, ORDERS[encoding] + TYPES[kind]))
            case ["comment" | "obj_info", *_]:
                pass
            case _:
                raise DataError(f"{path}: broken PLY header at {line!r:.60}")


def palette(count: int) -> np.ndarray:
    """(count, 3) uint8: colours as far from one another as hues can be.

    >>> palette(3).tolist()
    [[242, 84, 84], [84, 242, 84], [84, 84, 242]]
    """
    hues = (colorsys.hsv_to_rgb(index / count, 0.65, 0.95) for index in range(count))
    return (255 * np.array(list(hues))).astype(np.uint8)


def write_parts(
    path: Path, points: np.ndarray, parts: np.ndarray, count: int, comments: Sequence[str] = ()
) -> None:
    """Points (N, 3) with the number of their part (N,), and a colour for each of `count` parts."""
    columns = {
        "double": ("x", "y", "z"),
        "uchar": ("red", "green", "blue"),
        "int": ("part",),
    }
    properties = [(name, kind) for kind, names in columns.items() for name in names]
    records = np.empty(len(points), [(name, "<" + TYPES[kind]) for name, kind in properties])
    values = (*points.T, *palette(count)[parts].T, parts)
    for (name, _), column in zip(properties, values, strict=True):
        records[name] = column
    header = [
        "ply",
        "format binary_little_endian 1.0",
        *(f"comment {comment}" for comment in comments),
        f"element vertex {len(points)}",
        *(f"property {kind} {name}" for name, kind in properties),
        "end_header",
    ]
    with written_whole(path) as draft, draft.open("wb") as file:
        file.write(("\n".join(header) + "\n").encode("ascii", "replace"))
        file.write(records.tobytes())
