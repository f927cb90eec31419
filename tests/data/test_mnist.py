import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dumlp_pin.data import DataError, Images
from dumlp_pin.data.mnist import parse_idx

from .published import mnist, write_idx


def test_unpacked_files_read_the_same(tmp_path: Path, read: Callable[..., Images]) -> None:
    for suffix in (".gz", ""):
        (tmp_path / f"folder{suffix}").mkdir()
        mnist(tmp_path / f"folder{suffix}", suffix)
    packed, unpacked = (read("mnist", tmp_path / f"folder{suffix}") for suffix in (".gz", ""))
    assert torch.equal(packed.images, unpacked.images)
    assert packed.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert packed.class_names == tuple("0123456789")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not an idx file"),
        (bytes((0, 0, 13, 1)) + bytes(8), "not an idx file"),  # floats
        (bytes((0, 0, 8, 2)) + bytes(8), "not an idx file"),
        (bytes((0, 0, 8, 1, 255, 255, 255, 255)), "0 bytes of data, its header says 4294967295"),
        (bytes((0, 0, 8, 1, 0, 0, 0, 1)) + bytes(2), "2 bytes of data"),
        (gzip.compress(bytes(100), mtime=0)[:-1], "broken gzip"),
    ],
)
def test_broken_idx(raw: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        parse_idx(raw, "file", axes=1)


def test_label_out_of_range(published: Callable, read: Callable) -> None:
    folder = published("mnist")
    write_idx(folder / "train-labels-idx1-ubyte.gz", np.arange(12))
    with pytest.raises(DataError, match=r"labels-idx1-ubyte.gz: values must lie in 0..9"):
        read("mnist", folder)


def test_numbers_of_images_and_labels_differ(published: Callable, read: Callable) -> None:
    folder = published("mnist")
    write_idx(folder / "train-labels-idx1-ubyte.gz", np.zeros(11))
    with pytest.raises(DataError, match="12 images, but 11 labels"):
        read("mnist", folder)
