"""Point clouds: text files and HDF5 files to arrays, and the unit sphere."""

import io
from collections.abc import Sequence

import numpy as np

from dumlp_pin._errors import need
from dumlp_pin.data.checks import DataError, reason
from dumlp_pin.data.source import Source


def parse_table(
    raw: bytes, where: str, columns: int, separator: str | None = None, rows: int | None = None
) -> np.ndarray:
    """Text -> (rows, columns) float32; only the first rows where a number is given."""
    if not raw.strip():
        raise DataError(f"{where}: is empty")
    try:
        table = np.loadtxt(
            io.BytesIO(raw),
            np.float32,
            comments=None,
            delimiter=separator,
            ndmin=2,
            max_rows=rows,
            encoding="ascii",
        )
    except ValueError as error:
        raise DataError(f"{where}: not a table of numbers: {reason(error)}") from error
    if table.shape[1] != columns:
        raise DataError(f"{where}: expected {columns} columns, got {table.shape[1]}")
    if rows is not None and len(table) < rows:
        raise DataError(f"{where}: expected at least {rows} points, got {len(table)}")
    if not np.isfinite(table).all():
        raise DataError(f"{where}: holds NaN or infinite values")
    return table


def read_hdf5(source: Source, name: str, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """The named arrays of an HDF5 file, those it has."""
    h5py, where, raw = need("h5py", "data"), source.locate(name), source.read(name)
    arrays = {}
    try:
        with h5py.File(io.BytesIO(raw), "r") as file:
            for key in keys:
                link = file.get(key, getlink=True)
                if link is None:
                    continue
                # Links and external storage would read other files of this computer.
                if not isinstance(link, h5py.HardLink) or file[key].external:
                    raise DataError(f"{where}: refused, {key!r} points out of the file")
                dtype = file[key].dtype
                if file[key].is_virtual or dtype.kind not in "iuf" or dtype.itemsize > 8:
                    raise DataError(f"{where}: {key!r} is not an array of numbers")
                # No compression of HDF5 reaches a thousandfold: such a size is a broken header.
                if file[key].nbytes > 1000 * len(raw):
                    raise DataError(f"{where}: {key!r} claims {file[key].nbytes} bytes")
                arrays[key] = np.asarray(file[key][()], dtype.newbyteorder("="))
    except DataError:
        raise
    except Exception as error:  # the C library's errors have no common class
        raise DataError(f"{where}: broken HDF5 file: {reason(error)}") from error
    return arrays


def unit_sphere(points: np.ndarray, where: str) -> np.ndarray:
    """Centre (N, F) or (B, N, F) points by their mean and scale the largest norm to one.

    Only the first three features are coordinates; the others stay as they are.
    """
    # In float64: a cloud that is normalised already stays what it is, up to its last bit.
    coordinates = points[..., :3].astype(np.float64)
    coordinates -= coordinates.mean(-2, keepdims=True)
    radius = np.linalg.norm(coordinates, axis=-1, keepdims=True).max(-2, keepdims=True)
    if not (radius > 0).all():
        raise DataError(f"{where}: all points of a shape coincide")
    return np.concatenate((coordinates / radius, points[..., 3:]), -1).astype(np.float32)
