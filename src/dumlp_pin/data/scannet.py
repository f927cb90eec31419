"""ScanNet as PointNet++ prepared it: `scannet_train.pickle` and `scannet_test.pickle`."""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dumlp_pin.data.checks import DataError, check_finite, check_tensor, reason, whole_numbers
from dumlp_pin.data.records import Scenes
from dumlp_pin.data.source import Source

# Label 0 marks points without an annotation; spelling as published.
CLASSES = (
    "unannotated",
    "wall",
    "floor",
    "chair",
    "table",
    "desk",
    "bed",
    "bookshelf",
    "sofa",
    "sink",
    "bathtub",
    "toilet",
    "curtain",
    "counter",
    "door",
    "window",
    "shower curtain",
    "refridgerator",
    "picture",
    "cabinet",
    "otherfurniture",
)


def read(source: Source, split: str) -> Scenes:
    name = source.find(f"scannet_{split}.pickle")
    if name is None:
        raise DataError(f"{source.where}: holds no scannet_{split}.pickle")
    where = source.locate(name)
    clouds, labels = unpickle_arrays(source.read(name), where, lists=2)
    if not clouds or len(clouds) != len(labels):
        raise DataError(f"{where}: {len(clouds)} scenes, but labels of {len(labels)}")
    points = [_points(f"{where} scene {index}", cloud) for index, cloud in enumerate(clouds)]
    classes = [
        _labels(f"{where} scene {index}", label, len(cloud))
        for index, (label, cloud) in enumerate(zip(labels, points, strict=True))
    ]
    sizes = torch.tensor([0, *map(len, points)])
    return Scenes(
        name="scannet",
        split=split,
        class_names=CLASSES,
        points=torch.cat(points),
        labels=torch.cat(classes),
        offsets=sizes.cumsum(0),
    )


def _points(where: str, cloud: np.ndarray) -> torch.Tensor:
    if cloud.dtype.kind != "f":
        raise DataError(f"{where}: expected floating coordinates, got {cloud.dtype}")
    with np.errstate(over="ignore"):  # what overflows is infinite, and reported below
        points = torch.from_numpy(cloud.astype(np.float32))
    check_tensor(where, points, torch.float32, (None, 3))
    check_finite(where, points)
    return points


def _labels(where: str, array: np.ndarray, count: int) -> torch.Tensor:
    labels = whole_numbers(f"{where} labels", array, len(CLASSES)).to(torch.uint8)
    check_tensor(f"{where} labels", labels, torch.uint8, (count,))
    return labels


def unpickle_arrays(raw: bytes, where: str, lists: int) -> list[list[np.ndarray]]:
    """Lists of number arrays, one after another in a file, without running anything in it."""
    file = io.BytesIO(raw)
    try:
        found = [_ArrayUnpickler(file).load() for _ in range(lists)]
    except _RefusedError as error:
        raise DataError(f"{where}: refused, the pickle asks for {error}") from error
    except Exception as error:  # broken bytes are opcodes too, and can raise anything
        raise DataError(f"{where}: broken pickle: {reason(error)}") from error
    for arrays in found:
        if not isinstance(arrays, list) or not all(
            isinstance(array, _Array) and array.values is not None for array in arrays
        ):
            raise DataError(f"{where}: expected {lists} lists of number arrays")
    return [[array.values for array in arrays] for arrays in found]


class _RefusedError(Exception):
    pass


# Stand-ins for what numpy names in a pickle. numpy's own would take any state from the file, and
# a dtype with a broken state breaks numpy itself.
class _NumberType:
    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        self.dtype = np.dtype(code)
        if self.dtype.kind not in "biuf":
            raise ValueError(f"not a type of numbers: {code!r}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    values: np.ndarray | None = None

    def __init__(self, *_: object) -> None:
        """An empty array, as numpy's `_reconstruct` makes it; its state follows in the pickle."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, by_column, raw = state
        content = raw.encode("latin1") if isinstance(raw, str) else raw
        values = np.frombuffer(content, kind.dtype).reshape(shape, order="F" if by_column else "C")
        self.values = values.astype(kind.dtype.newbyteorder("="))


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"not an encoding numpy uses: {encoding!r}")
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _NumberType,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _encode,
}


# The Python implementation, since the C one grows its memo to whatever index a broken file names.
class _ArrayUnpickler(pickle._Unpickler):
    """Builds lists of arrays and nothing else: a global outside the table above is refused."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, encoding="latin1")

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise _RefusedError(f"{module}.{name}") from None
