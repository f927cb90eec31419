import pytest
import torch

from dumlp_pin.data import pixel_set


def test_every_pixel_knows_where_it_is() -> None:
    images = torch.arange(2 * 28 * 28, dtype=torch.float32).reshape(2, 28, 28) / 2000
    pixels = pixel_set(images)
    assert pixels.shape == (2, 784, 3)
    row, column = 5, 20
    expected = torch.tensor([2 * row / 27 - 1, 2 * column / 27 - 1, images[1, row, column]])
    torch.testing.assert_close(pixels[1, 28 * row + column], expected)
    assert pixels[..., :2].aminmax() == (-1, 1)


def test_uint8_becomes_grey_in_0_to_1() -> None:
    images = torch.tensor([[[0, 51], [255, 102], [153, 204]]], dtype=torch.uint8)
    torch.testing.assert_close(pixel_set(images)[0, :, 2], torch.tensor([0, 0.2, 1, 0.4, 0.6, 0.8]))


def test_wrong_images() -> None:
    with pytest.raises(ValueError, match=r"expected images of shape \(B, H, W\), got \(28, 28\)"):
        pixel_set(torch.zeros(28, 28))
    with pytest.raises(TypeError, match=r"expected uint8 or floating images, got torch.int64"):
        pixel_set(torch.zeros(1, 28, 28, dtype=torch.int64))
