"""One cloud and one mesh, written in every format that is read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import laspy
import numpy as np
import pyarrow as pa
import pyarrow.parquet

random = np.random.default_rng(0)
POINTS = random.normal(size=(40, 3)).round(3)
NORMALS = POINTS / np.linalg.norm(POINTS, axis=1, keepdims=True)
CLOUD = np.concatenate((POINTS, NORMALS), 1)

# A box of 1 x 2 x 4: its corners, and its sides with the corners in counterclockwise order.
CORNERS = np.array([[x, y, z] for x in (0.0, 1.0) for y in (0.0, 2.0) for z in (0.0, 4.0)])
SIDES = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]
TRIANGLES = [[a, b, c] for a, *rest in SIDES for b, c in (rest[:2], rest[1:])]


def _lines(rows: np.ndarray, separator: str = " ") -> str:
    return "".join(separator.join(f"{value:.9f}" for value in row) + "\n" for row in rows)


def xyz(path: Path) -> None:
    path.write_text("# a scan\n" + _lines(CLOUD))


def csv(path: Path) -> None:
    table = np.column_stack((np.arange(40), CLOUD))
    path.write_text('"id","X","Y","Z",nx,ny,nz\n' + _lines(table, ","))


def txt(path: Path) -> None:
    path.write_text("//X;Y;Z;Nx;Ny;Nz\n" + _lines(CLOUD, ";"))


def npy(path: Path) -> None:
    np.save(path, CLOUD)


def npz(path: Path) -> None:
    np.savez(path, points=POINTS, normals=NORMALS, label=np.array(3))


def parquet(path: Path) -> None:
    names = ("nz", "x", "y", "z", "nx", "ny")
    columns = (CLOUD[:, 5], *CLOUD[:, :5].T)
    pyarrow.parquet.write_table(pa.table(dict(zip(names, columns, strict=True))), path)


def _ply_header(encoding: str) -> bytes:
    names = ("x", "y", "z", "nx", "ny", "nz")
    properties = "".join(f"property double {name}\n" for name in names)
    return (
        f"ply\nformat {encoding} 1.0\ncomment a scan\nelement vertex 40\n{properties}"
        "property uchar red\nend_header\n"
    ).encode()


def ply_ascii(path: Path) -> None:
    rows = np.column_stack((CLOUD, np.full(40, 255)))
    path.write_bytes(_ply_header("ascii") + _lines(rows).encode())


def _ply_binary(path: Path, order: str, encoding: str) -> None:
    rows = b"".join(struct.pack(f"{order}6dB", *row, 255) for row in CLOUD)
    path.write_bytes(_ply_header(encoding) + rows)


def ply_little(path: Path) -> None:
    _ply_binary(path, "<", "binary_little_endian")


def ply_big(path: Path) -> None:
    _ply_binary(path, ">", "binary_big_endian")


def _pcd_header(encoding: str) -> bytes:
    return (
        "# .PCD v0.7\nVERSION 0.7\nFIELDS x y z rgb normal_x normal_y normal_z\n"
        "SIZE 8 8 8 4 8 8 8\nTYPE F F F U F F F\nCOUNT 1 1 1 2 1 1 1\n"
        f"WIDTH 41\nHEIGHT 1\nPOINTS 41\nDATA {encoding}\n"
    ).encode()


# A depth camera writes NaN where it saw nothing.
_PCD_ROWS = np.concatenate((CLOUD, np.full((1, 6), np.nan)))


def pcd_ascii(path: Path) -> None:
    rows = np.column_stack((_PCD_ROWS[:, :3], np.ones((41, 2)), _PCD_ROWS[:, 3:]))
    path.write_bytes(_pcd_header("ascii") + _lines(rows).encode())


def pcd_binary(path: Path) -> None:
    rows = (struct.pack("<3d2I3d", *row[:3], 1, 1, *row[3:]) for row in _PCD_ROWS)
    path.write_bytes(_pcd_header("binary") + b"".join(rows))


def pcd_compressed(path: Path) -> None:
    columns = [_PCD_ROWS[:, 0], _PCD_ROWS[:, 1], _PCD_ROWS[:, 2]]
    raw = b"".join(column.tobytes() for column in columns) + bytes(41 * 8)
    raw += b"".join(_PCD_ROWS[:, axis].tobytes() for axis in (3, 4, 5))
    packed = _lzf(raw)
    sizes = struct.pack("<II", len(packed), len(raw))
    path.write_bytes(_pcd_header("binary_compressed") + sizes + packed)


def _lzf(raw: bytes) -> bytes:
    """Runs of one byte as references of every length there is, the rest as literals."""
    packed, place = bytearray(), 0
    while place < len(raw):
        run = 0
        while place and run < 264 and raw[place + run : place + run + 1] == raw[place - 1 : place]:
            run += 1
        if run >= 9:
            packed += bytes([7 << 5, run - 9, 0])
        elif run >= 3:
            packed += bytes([(run - 2) << 5, 0])
        else:
            run = min(5, len(raw) - place)
            packed += bytes([run - 1]) + raw[place : place + run]
        place += run
    return bytes(packed)


def las(path: Path) -> None:
    header = laspy.LasHeader(point_format=3, version="1.2")
    header.scales = np.full(3, 0.001)
    header.offsets = np.array([1.0, 2.0, 3.0])
    file = laspy.LasData(header)
    file.x, file.y, file.z = POINTS.T
    file.write(str(path))


def off(path: Path) -> None:
    faces = "".join(f"4 {a} {b} {c} {d} 255 0 0\n" for a, b, c, d in SIDES)
    path.write_text(f"OFF\n# a box\n8 6 0\n{_lines(CORNERS)}{faces}")


def off_joined(path: Path) -> None:
    faces = "".join(f"3 {a} {b} {c}\n" for a, b, c in TRIANGLES)
    path.write_text(f"OFF8 12 0\n{_lines(CORNERS)}{faces}")


def obj(path: Path) -> None:
    vertices = "".join(f"v {x} {y} {z} 0.5 0.5 0.5\n" for x, y, z in CORNERS)
    faces = "".join(
        "f " + " ".join(f"{corner + 1}/1/{corner + 1}" for corner in side) + "\n"
        for side in SIDES[:3]
    )
    relative = "".join("f " + " ".join(str(n - 8) for n in side) + "\n" for side in SIDES[3:])
    path.write_text(f"mtllib box.mtl\n{vertices}vt 0 0\nvn 0 0 1\n{faces}{relative}")


def stl_text(path: Path) -> None:
    facets = "".join(
        "facet normal 0 0 0\nouter loop\n"
        + "".join("vertex {} {} {}\n".format(*CORNERS[corner]) for corner in triangle)
        + "endloop\nendfacet\n"
        for triangle in TRIANGLES
    )
    path.write_text(f"solid box\n{facets}endsolid box\n")


def stl_binary(path: Path) -> None:
    facets = (
        struct.pack("<12fH", 0, 0, 0, *CORNERS[triangle].ravel(), 0) for triangle in TRIANGLES
    )
    path.write_bytes(b"solid".ljust(80) + struct.pack("<I", 12) + b"".join(facets))


def ply_mesh(path: Path) -> None:
    faces = "".join(f"4 {a} {b} {c} {d}\n" for a, b, c, d in SIDES)
    path.write_text(
        "ply\nformat ascii 1.0\nelement vertex 8\nproperty float x\nproperty float y\n"
        "property float z\nelement face 6\nproperty list uchar int vertex_indices\nend_header\n"
        f"{_lines(CORNERS)}{faces}"
    )


Writer = Callable[[Path], None]

# Those with normals, those without, and meshes: the suffix comes first in the key.
CLOUDS: dict[str, Writer] = {
    ".xyz": xyz,
    ".csv": csv,
    ".txt": txt,
    ".npy": npy,
    ".npz": npz,
    ".parquet": parquet,
    ".ply ascii": ply_ascii,
    ".ply little": ply_little,
    ".ply big": ply_big,
    ".pcd ascii": pcd_ascii,
    ".pcd binary": pcd_binary,
    ".pcd compressed": pcd_compressed,
}
BARE_CLOUDS: dict[str, Writer] = {".las": las, ".laz": las}
MESHES: dict[str, Writer] = {
    ".off": off,
    ".off joined": off_joined,
    ".obj": obj,
    ".stl text": stl_text,
    ".stl binary": stl_binary,
    ".ply mesh": ply_mesh,
}
ALL = CLOUDS | BARE_CLOUDS | MESHES


def written(kind: str, folder: Path) -> Path:
    """The file of one kind, in a folder."""
    path = folder / f"shape{kind.split()[0]}"
    ALL[kind](path)
    return path
