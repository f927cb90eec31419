import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dumlp_pin.data import DataError, Scenes
from dumlp_pin.data.scannet import unpickle_arrays

from .published import cloud, python2_pickle


def test_scenes_follow_one_another(published: Callable, read: Callable[..., Scenes]) -> None:
    record = read("scannet", published("scannet"))
    assert record.offsets.tolist() == [0, 30, 37, 49]
    assert len(record) == 3
    np.testing.assert_array_equal(record.points[30:37], cloud(7, 7, normals=False))
    assert record.labels[30:37].tolist() == list(range(7))
    assert len(record.class_names) == 21


@pytest.mark.parametrize("protocol", range(5))
def test_reads_what_numpy_pickles(protocol: int) -> None:
    arrays = [np.arange(6.0).reshape(2, 3), np.arange(3, dtype=">i4"), np.ones(2, np.float32)]
    raw = pickle.dumps(arrays, protocol) + pickle.dumps([np.int64(3)] * 0, protocol)
    found, empty = unpickle_arrays(raw, "file", lists=2)
    assert empty == []
    for array, expected in zip(found, arrays, strict=True):
        assert array.dtype == expected.dtype.newbyteorder("=")
        np.testing.assert_array_equal(array, expected)


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable, tuple]:
        return self.call


@pytest.mark.parametrize("protocol", range(5))
def test_a_malicious_pickle_runs_nothing(protocol: int, tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    raw = pickle.dumps(Call(os.system, f"touch {bait}"), protocol)
    with pytest.raises(DataError, match=r"^file: refused, the pickle asks for \w+\.system$"):
        unpickle_arrays(raw, "file", lists=1)
    assert not bait.exists()
    pickle.loads(raw)  # the bait works
    assert bait.exists()


@pytest.mark.parametrize("function", [eval, getattr, np.load, np.fromfile, pickle.loads])
def test_other_globals_are_refused(function: Callable) -> None:
    with pytest.raises(DataError, match="refused, the pickle asks for"):
        unpickle_arrays(pickle.dumps(Call(function, "x")), "file", lists=1)


def test_a_broken_dtype_does_not_reach_numpy() -> None:
    """numpy takes any flags from a pickle, and cannot free an array of such a type."""
    raw = pickle.dumps([np.arange(3)], 2)
    state = raw.index(b"NNNJ")  # no subtype, no names, no fields; then size, alignment, flags
    for place in range(state, state + 16):
        for value in range(256):
            damaged = bytearray(raw)
            damaged[place] = value
            try:
                unpickle_arrays(bytes(damaged), "file", lists=1)
            except DataError as error:
                assert "\n" not in str(error)  # noqa: PT017


def test_objects_in_arrays_are_refused() -> None:
    raw = pickle.dumps([np.array([{}, None], object)])
    with pytest.raises(DataError, match="not a type of numbers"):
        unpickle_arrays(raw, "file", lists=1)


@pytest.mark.parametrize("value", [{}, [1], [[np.zeros(2)]], np.zeros(3), "text"])
def test_anything_but_lists_of_arrays(value: object) -> None:
    with pytest.raises(DataError, match="expected 1 lists of number arrays"):
        unpickle_arrays(pickle.dumps(value), "file", lists=1)


@pytest.mark.parametrize(
    ("points", "labels", "words"),
    [
        ([np.zeros((4, 3))], [], "1 scenes, but labels of 0"),
        ([], [], "0 scenes"),
        ([np.zeros((4, 2))], [np.zeros(4, int)], "scene 0: expected float32 of shape (any, 3)"),
        ([np.zeros((4, 3), int)], [np.zeros(4, int)], "scene 0: expected floating coordinates"),
        ([np.full((4, 3), np.nan)], [np.zeros(4, int)], "scene 0: holds NaN"),
        ([np.full((4, 3), 1e300)], [np.zeros(4, int)], "scene 0: holds NaN or infinite"),
        ([np.zeros((4, 3))], [np.zeros(5, int)], "scene 0 labels: expected uint8 of shape (4)"),
        ([np.zeros((4, 3))], [np.full(4, 21)], "scene 0 labels: values must lie in 0..20"),
        ([np.zeros((4, 3))], [np.full(4, 256)], "scene 0 labels: values must lie in 0..20"),
    ],
)
def test_wrong_scenes(
    points: list, labels: list, words: str, tmp_path: Path, read: Callable
) -> None:
    (tmp_path / "scannet_train.pickle").write_bytes(python2_pickle(points, labels))
    with pytest.raises(DataError, match=r"scannet_train.pickle") as caught:
        read("scannet", tmp_path)
    assert words in str(caught.value)
