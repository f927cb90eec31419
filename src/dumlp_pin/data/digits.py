"""Handwritten digits of 8 x 8 pixels: small enough to ship with the package."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import torch

from dumlp_pin.data.records import Images

# The test set is the end of the publisher's order, unshuffled: neighbours may share a writer.
SPLITS = {"train": slice(None, 1_297), "test": slice(1_297, None)}
GREY_LEVELS = 16


def load(split: str) -> Images:
    """1,297 images to train on and 500 to test, of the 1,797 that UCI's test part has.

    >>> load("test").images.shape
    torch.Size([500, 8, 8])
    """
    if split not in SPLITS:
        raise ValueError(f"digits has no split {split!r}; it has {', '.join(SPLITS)}")
    file = files("dumlp_pin.data") / "digits.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        images, labels = arrays["images"][SPLITS[split]], arrays["labels"][SPLITS[split]]
    digits = Images(
        name="digits",
        split=split,
        class_names=tuple("0123456789"),
        labels=torch.from_numpy(labels.astype(np.int64)),
        images=torch.from_numpy((images.astype(np.uint16) * 255 // GREY_LEVELS).astype(np.uint8)),
    )
    digits.check()
    return digits
