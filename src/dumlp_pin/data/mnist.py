"""MNIST: four idx files, gzipped as published or unpacked."""

import gzip
import math
import struct
import zlib

import numpy as np
import torch
from torch import Tensor

from dumlp_pin.data.checks import DataError, check_range
from dumlp_pin.data.records import Images
from dumlp_pin.data.source import Source

_STEMS = {"train": "train", "test": "t10k"}


def read(source: Source, split: str) -> Images:
    images_name, images = _find(source, f"{_STEMS[split]}-images-idx3-ubyte", axes=3)
    labels_name, labels = _find(source, f"{_STEMS[split]}-labels-idx1-ubyte", axes=1)
    if len(images) != len(labels):
        raise DataError(f"{images_name}: {len(images)} images, but {len(labels)} labels")
    check_range(labels_name, labels, 10)
    return Images(
        name="mnist",
        split=split,
        class_names=tuple("0123456789"),
        images=images,
        labels=labels.long(),
    )


def _find(source: Source, stem: str, axes: int) -> tuple[str, Tensor]:
    name = source.find(f"{stem}.gz") or source.find(stem)
    if name is None:
        raise DataError(f"{source.where}: holds neither {stem}.gz nor {stem}")
    where = source.locate(name)
    return where, parse_idx(source.read(name), where, axes)


def parse_idx(raw: bytes, where: str, axes: int) -> Tensor:
    """Bytes of an idx file, gzipped or not -> uint8 tensor of so many axes."""
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{where}: broken gzip file: {error}") from error
    # Two zero bytes, 8 for uint8, the number of axes; then each axis in four bytes.
    header = 4 + 4 * axes
    if len(raw) < header or raw[:4] != bytes((0, 0, 8, axes)):
        raise DataError(f"{where}: not an idx file of uint8 with {axes} axes")
    shape = struct.unpack(f">{axes}I", raw[4:header])
    if len(raw) - header != math.prod(shape):
        raise DataError(
            f"{where}: {len(raw) - header} bytes of data, its header says {math.prod(shape)}"
        )
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=header).reshape(shape).copy())
