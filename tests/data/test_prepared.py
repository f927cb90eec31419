"""The real data sets, prepared under $DUMLP_PIN_DATA; those that are not there are skipped."""

import time

import pytest
import torch

from dumlp_pin.data import FaceSets, Images, PartShapes, Shapes, Split, load, pixel_set
from dumlp_pin.data.registry import DATASETS

pytestmark = pytest.mark.data


def prepared(name: str, split: str) -> Split:
    try:
        return load(name, split)
    except FileNotFoundError as error:
        pytest.skip(str(error))


every_split = pytest.mark.parametrize(
    ("name", "split"),
    [(name, split) for name, dataset in DATASETS.items() for split in dataset.published],
)


@every_split
def test_loads_in_under_two_seconds(name: str, split: str) -> None:
    prepared(name, split)
    start = time.perf_counter()
    record = prepared(name, split)
    assert time.perf_counter() - start < 2
    if not isinstance(record, FaceSets):  # of CelebA, copies with some of the images are common
        assert record.published_size() >= 0.99 * DATASETS[name].published[split]


@pytest.mark.parametrize("split", ["train", "test"])
def test_mnist(split: str) -> None:
    record = prepared("mnist", split)
    assert isinstance(record, Images)
    assert record.images.shape[1:] == (28, 28)
    assert record.labels.bincount(minlength=10).min() > 0.08 * len(record)
    pixels = pixel_set(record.images[:100])
    assert pixels.shape == (100, 784, 3)
    assert pixels.aminmax() == (-1, 1)


@pytest.mark.parametrize("split", ["train", "test"])
def test_modelnet40(split: str) -> None:
    record = prepared("modelnet40", split)
    assert isinstance(record, Shapes)
    assert record.points.shape[1:] == (1024, 6)
    assert len(record.class_names) == 40
    assert record.labels.unique().tolist() == list(range(40))
    coordinates, normals = record.points.split(3, -1)
    radius = coordinates.norm(dim=-1).amax(1)
    torch.testing.assert_close(radius, torch.ones_like(radius))
    torch.testing.assert_close(coordinates.mean(1), torch.zeros(len(record), 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        normals.norm(dim=-1), torch.ones(len(record), 1024), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_shapenetpart(split: str) -> None:
    record = prepared("shapenetpart", split)
    assert isinstance(record, PartShapes)
    assert record.points.shape[1:] == (2048, 3)
    assert record.points.norm(dim=-1).amax() < 1.01
    assert record.labels.unique().tolist() == list(range(16))
    assert record.parts.unique().tolist() == list(range(50))
    # Every part belongs to the category of its shape.
    first, stop = record.part_offsets[record.labels], record.part_offsets[record.labels + 1]
    assert (record.parts >= first[:, None]).all()
    assert (record.parts < stop[:, None]).all()


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_celeba(split: str) -> None:
    record = prepared("celeba", split)
    assert isinstance(record, FaceSets)
    assert len(record.class_names) == 40
    assert len(record) > 0.09 * len(record.images)  # nearly every image is in a set
    assert record.labels.bincount(minlength=10).min() > 0.05 * len(record)
    assert len(record.attributes.unique(dim=0)) > 100
    assert 50 < record.images.float().mean() < 200
