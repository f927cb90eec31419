import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dumlp_pin.data import DataError, FaceSets
from dumlp_pin.data.celeba import decode, sample_sets

from .published import celeba_attributes, jpeg

ATTRIBUTES = np.random.default_rng(0).random((2000, 6)) < 0.5


def test_nine_have_both_attributes_and_one_has_neither() -> None:
    members, labels, pairs = sample_sets(ATTRIBUTES, seed=0)
    assert len(members) > 100
    for set_, odd, pair in zip(members, labels, pairs, strict=True):
        has = ATTRIBUTES[set_][:, pair]
        assert not has[odd].any()
        assert np.delete(has, odd, 0).all()


def test_an_image_appears_at_most_once() -> None:
    members = sample_sets(ATTRIBUTES, seed=0)[0]
    assert len(np.unique(members)) == members.size


def test_places_and_pairs_are_spread() -> None:
    _, labels, pairs = sample_sets(ATTRIBUTES, seed=0)
    assert set(labels) == set(range(10))
    assert len(np.unique(pairs, axis=0)) == 15


def test_sampling_is_fixed() -> None:
    first, again, other = (sample_sets(ATTRIBUTES, seed)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert first.shape != other.shape or (first != other).any()


def test_sampling_stays_what_it_was() -> None:
    """Results can only be compared while everyone samples the same sets."""
    attributes = np.arange(2000)[:, None] % np.array([2, 3, 5, 7]) == 0
    first = sample_sets(attributes, seed=0)[0][0]
    assert first.tolist() == [260, 100, 730, 1093, 1850, 950, 880, 710, 1390, 860]


def test_too_few_images() -> None:
    with pytest.raises(DataError, match="9 images are too few for a set of ten"):
        sample_sets(np.ones((9, 2), bool), seed=0)


def test_splits_by_the_last_digit(published: Callable, read: Callable[..., FaceSets]) -> None:
    folder = published("celeba")
    sizes = {split: len(read("celeba", folder, split).images) for split in ("train", "val", "test")}
    assert sizes == {"train": 104, "val": 13, "test": 13}


def test_official_partition(published: Callable, read: Callable[..., FaceSets]) -> None:
    folder = published("celeba")
    lines = (f"{n:06d}.jpg {0 if n <= 70 else 1 if n <= 100 else 2}\n" for n in range(1, 131))
    (folder / "list_eval_partition.txt").write_text("".join(lines))
    for split, first, size in (("train", 0, 70), ("val", 70, 30), ("test", 100, 30)):
        record = read("celeba", folder, split)
        assert len(record.images) == size
        has = celeba_attributes(130)[first : first + size, 0]
        assert has[record.members].sum(1).tolist() == [9] * len(record)


def test_small_images_stay_as_they_are() -> None:
    raw = jpeg(40, 49)
    expected = np.asarray(Image.open(io.BytesIO(raw)))
    np.testing.assert_array_equal(decode(raw, "file"), expected)


def test_large_images_are_averaged_not_picked() -> None:
    """A pattern finer than the small image's pixels becomes its mean."""
    stripes = np.zeros((218, 178, 3), np.uint8)
    stripes[:, ::2] = 255
    file = io.BytesIO()
    Image.fromarray(stripes).save(file, "JPEG", quality=100)
    small = decode(file.getvalue(), "file")
    assert small.shape == (49, 40, 3)
    assert np.abs(small[5:-5, 5:-5].astype(float) - 127.5).max() < 30


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (jpeg(64, 64), "expected an image of 178 x 218 or 40 x 49, got 64 x 64"),
        (jpeg(178, 218)[:-500], "broken JPEG"),
        (b"GIF89a" + bytes(100), "broken JPEG"),
    ],
)
def test_wrong_images(raw: bytes, words: str) -> None:
    with pytest.raises(DataError, match=f"^file: {words}"):
        decode(raw, "file")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("130\n", "131\n", "its first line must count its 130 images, got '131'"),
        ("000001.jpg -1", "000001.jpg 0", "expected 40 times 1 or -1 for 000001.jpg"),
        ("000001.jpg -1", "000001.jpg", "expected 40 times 1 or -1 for 000001.jpg"),
        ("000001.jpg", "000002.jpg", "lists an image twice"),
        ("000001.jpg", "200001.jpg", "no 200001.jpg"),
    ],
)
def test_wrong_attributes(
    old: str, new: str, words: str, published: Callable, read: Callable
) -> None:
    path: Path = published("celeba") / "list_attr_celeba.txt"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=words):
        read("celeba", path.parent)


@pytest.mark.parametrize(
    ("lines", "words"),
    [("000001.jpg 0\n", "says nothing of 000002.jpg"), ("000001.jpg 3\n", "and 0, 1 or 2")],
)
def test_wrong_partition(lines: str, words: str, published: Callable, read: Callable) -> None:
    folder = published("celeba")
    (folder / "list_eval_partition.txt").write_text(lines)
    with pytest.raises(DataError, match=rf"list_eval_partition.txt: .*{words}"):
        read("celeba", folder)


def test_images_in_the_published_zip(published: Callable, read: Callable[..., FaceSets]) -> None:
    folder = published("celeba")
    expected = read("celeba", folder)
    shutil.make_archive(str(folder / "img_align_celeba"), "zip", folder, "img_align_celeba")
    shutil.rmtree(folder / "img_align_celeba")
    assert (read("celeba", folder).images == expected.images).all()
