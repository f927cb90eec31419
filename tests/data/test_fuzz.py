"""Whatever bytes a file holds: a `DataError` of one line, or arrays that pass every check."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dumlp_pin.data import DataError
from dumlp_pin.data.celeba import decode
from dumlp_pin.data.clouds import parse_table
from dumlp_pin.data.mnist import parse_idx
from dumlp_pin.data.registry import DATASETS
from dumlp_pin.data.scannet import unpickle_arrays
from dumlp_pin.data.source import open_source

from .published import LAYOUTS, cloud, jpeg, python2_pickle

Edits = list[tuple[float, int]]
edits = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4)
cuts = st.one_of(st.none(), st.floats(0, 1))
fuzz = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def damage(raw: bytes, changes: Edits, cut: float | None) -> bytes:
    """Overwrite some bytes, then cut off the end."""
    damaged = bytearray(raw)
    for place, value in changes:
        damaged[int(place * len(raw))] = value
    return bytes(damaged if cut is None else damaged[: int(cut * len(raw))])


def survives(parse: Callable[[], object]) -> None:
    """Run a parser that may succeed."""
    try:
        parse()
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017


def idx(raw: bytes) -> None:
    images = parse_idx(raw, "file", axes=3)
    assert images.dtype == torch.uint8
    assert images.ndim == 3


def table(raw: bytes) -> None:
    rows = parse_table(raw, "file", columns=6, separator=",")
    assert np.isfinite(rows).all()
    assert rows.shape[1] == 6


def arrays(raw: bytes) -> None:
    for found in unpickle_arrays(raw, "file", lists=2):
        assert all(isinstance(array, np.ndarray) for array in found)


IDX = bytes((0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4)) + bytes(range(24))
TEXT = "".join(",".join(f"{x:.6f}" for x in row) + "\n" for row in cloud(0, 5)).encode()
PARSERS = {
    "idx": (idx, IDX),
    "gzipped idx": (idx, gzip.compress(IDX)),
    "table": (table, TEXT),
    "pickle": (arrays, python2_pickle([cloud(0, 5)], [np.arange(5)])),
    "jpeg": (lambda raw: decode(raw, "file"), jpeg(40, 49)),
}


@pytest.mark.parametrize("parser", PARSERS)
@given(changes=edits, cut=cuts)
@settings(fuzz, max_examples=300)
def test_parsers(parser: str, changes: Edits, cut: float | None) -> None:
    parse, raw = PARSERS[parser]
    survives(lambda: parse(damage(raw, changes, cut)))


@pytest.mark.parametrize("parser", PARSERS)
@given(raw=st.binary(max_size=200))
@fuzz
def test_parsers_of_anything(parser: str, raw: bytes) -> None:
    survives(lambda: PARSERS[parser][0](raw))


@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data(), changes=edits, cut=cuts)
@fuzz
def test_any_file_of_a_layout(
    layout: str, data: st.DataObject, changes: Edits, cut: float | None, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    if not folder.exists():
        folder.mkdir()
        LAYOUTS[layout][1](folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    # One picture stands for all: the lists beside them have more ways to be wrong.
    path = data.draw(st.sampled_from([file for file in files if file.suffix != ".jpg"] + files[:1]))
    raw = path.read_bytes()
    try:
        path.write_bytes(damage(raw, changes, cut))
        survives(lambda: read_all(layout, folder))
    finally:
        path.write_bytes(raw)


@pytest.mark.parametrize("kind", ["zip", "tar", "gztar"])
@given(changes=edits, cut=cuts)
@fuzz
def test_any_archive(kind: str, changes: Edits, cut: float | None, tmp_path: Path) -> None:
    path = tmp_path / kind
    if not path.exists():
        LAYOUTS["mnist"][1](tmp_path)
        packed = shutil.make_archive(str(tmp_path / "packed"), kind, tmp_path)
        path.write_bytes(Path(packed).read_bytes())
    (tmp_path / "damaged").write_bytes(damage(path.read_bytes(), changes, cut))
    survives(lambda: read_all("mnist", tmp_path / "damaged"))


def read_all(layout: str, path: Path) -> None:
    dataset = DATASETS[LAYOUTS[layout][0]]
    assert dataset.read is not None
    with open_source(path) as source:
        for split in dataset.published:
            dataset.read(source, split).check()
