"""CelebA set anomaly detection: ten faces, nine with both of two attributes, one with neither."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import PurePosixPath

import numpy as np
import torch

from dumlp_pin._errors import need
from dumlp_pin.data.checks import DataError, reason
from dumlp_pin.data.records import FaceSets
from dumlp_pin.data.source import Source

HEIGHT, WIDTH = 49, 40
_PUBLISHED_SIZE = (178, 218)  # width, height, as Pillow says it
_SPLITS = ("train", "val", "test")  # numbered so in list_eval_partition.txt


def read(source: Source, split: str) -> FaceSets:
    attribute_names, attributes_of = _read_attributes(source)
    partition = _read_partition(source, list(attributes_of))
    chosen = [name for name in attributes_of if partition[name] == split]
    attributes = np.array([attributes_of[name] for name in chosen], bool)
    members, labels, pairs = sample_sets(
        attributes.reshape(len(chosen), len(attribute_names)), seed=_SPLITS.index(split)
    )
    with _images(source) as images:
        pixels = _read_images(images, chosen, f"celeba {split}")
    return FaceSets(
        name="celeba",
        split=split,
        class_names=attribute_names,
        images=torch.from_numpy(pixels),
        members=torch.from_numpy(members),
        labels=torch.from_numpy(labels),
        attributes=torch.from_numpy(pairs),
    )


def sample_sets(attributes: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(I, A) attributes of the images -> members (B, 10), odd places (B,), pairs (B, 2).

    A pair of attributes is drawn, then nine of the unused images that have both and one that has
    neither, then the place of that one. A pair that cannot fill a set any more is not drawn again;
    when no pair is left, the sets are shuffled.

    >>> eleven = np.array([[True, True]] * 10 + [[False, False]])
    >>> members, labels, pairs = sample_sets(eleven, seed=0)
    >>> members[0][labels[0]], len(set(members[0])), pairs
    (np.int64(10), 10, array([[0, 1]]))
    """
    # RandomState, since numpy promises its stream for ever and that of Generator it does not.
    random = np.random.RandomState(seed)
    unused = np.ones(len(attributes), bool)
    open_pairs = list(combinations(range(attributes.shape[1]), 2))
    sets: list[tuple[np.ndarray, int, tuple[int, int]]] = []
    while open_pairs:
        draw = random.randint(len(open_pairs))
        first, second = attributes[:, open_pairs[draw]].T
        both = np.flatnonzero(unused & first & second)
        neither = np.flatnonzero(unused & ~first & ~second)
        if len(both) < 9 or not len(neither):
            del open_pairs[draw]
            continue
        normal = random.choice(both, 9, replace=False)
        odd, place = random.choice(neither), random.randint(10)
        members = np.insert(normal, place, odd)
        unused[members] = False
        sets.append((members, place, open_pairs[draw]))
    if not sets:
        raise DataError(f"{len(attributes)} images are too few for a set of ten")
    members, labels, pairs = (np.array(column, np.int64) for column in zip(*sets, strict=True))
    order = random.permutation(len(sets))
    return members[order], labels[order], pairs[order]


def _read_attributes(source: Source) -> tuple[tuple[str, ...], dict[str, list[bool]]]:
    name = source.find("list_attr_celeba.txt")
    if name is None:
        raise DataError(f"{source.where}: holds no list_attr_celeba.txt")
    where, lines = source.locate(name), source.read_lines(name)
    if len(lines) < 3 or lines[0] != str(len(lines) - 2):
        raise DataError(
            f"{where}: its first line must count its {max(len(lines) - 2, 0)} images, "
            f"got {''.join(lines[:1])[:40]!r}"
        )
    attribute_names = tuple(lines[1].split())
    attributes_of = {}
    for line in lines[2:]:
        image, *values = line.split()
        if len(values) != len(attribute_names) or not {"1", "-1"}.issuperset(values):
            raise DataError(f"{where}: expected {len(attribute_names)} times 1 or -1 for {image}")
        attributes_of[image] = [value == "1" for value in values]
    if len(attributes_of) != len(lines) - 2:
        raise DataError(f"{where}: lists an image twice")
    return attribute_names, attributes_of


def _read_partition(source: Source, images: list[str]) -> dict[str, str]:
    """The split of every image: the official one, or one by the last digit of its number."""
    name = source.find("list_eval_partition.txt")
    if name is None:
        by_digit = {"8": "val", "9": "test"}
        return {image: by_digit.get(PurePosixPath(image).stem[-1:], "train") for image in images}
    where = source.locate(name)
    partition = {}
    for line in source.read_lines(name):
        image, _, number = line.partition(" ")
        if number.strip() not in ("0", "1", "2"):
            raise DataError(f"{where}: expected an image and 0, 1 or 2, got {line[:40]!r}")
        partition[image] = _SPLITS[int(number)]
    if missing := [image for image in images if image not in partition]:
        raise DataError(f"{where}: says nothing of {missing[0]}")
    return partition


@contextmanager
def _images(source: Source) -> Iterator[Source]:
    """Where the faces are: img_align_celeba.zip in the source, or the source itself."""
    if name := source.find("img_align_celeba.zip"):
        with source.inner(name) as images:
            yield images
    else:
        yield source


def _read_images(source: Source, chosen: list[str], doing: str) -> np.ndarray:
    at = {PurePosixPath(name).name: name for name in source.names}
    if missing := [image for image in chosen if image not in at]:
        raise DataError(f"{source.where}: holds no {missing[0]}, which list_attr_celeba.txt lists")
    index_of = {at[image]: index for index, image in enumerate(chosen)}
    pixels = np.empty((len(chosen), 3, HEIGHT, WIDTH), np.uint8)
    for name, raw in source.read_each(index_of, doing):
        pixels[index_of[name]] = decode(raw, source.locate(name)).transpose(2, 0, 1)
    return pixels


def decode(raw: bytes, where: str) -> np.ndarray:
    """A published JPEG, or one that has the small size already -> (49, 40, 3) uint8."""
    Image = need("PIL.Image", "data")
    try:
        with Image.open(io.BytesIO(raw), formats=("JPEG",)) as image:
            size = image.size
            if size == _PUBLISHED_SIZE:
                # Pillow's bilinear filter widens when it shrinks an image: no aliasing.
                face = image.convert("RGB").resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
                return np.asarray(face)
            if size == (WIDTH, HEIGHT):
                return np.asarray(image.convert("RGB"))
    except Exception as error:  # Pillow's decoders have no common class of errors
        raise DataError(f"{where}: broken JPEG: {reason(error)}") from error
    raise DataError(
        f"{where}: expected an image of 178 x 218 or {WIDTH} x {HEIGHT}, got {size[0]} x {size[1]}"
    )
