"""Images as sets of pixels."""

import torch
from torch import Tensor


def pixel_set(images: Tensor) -> Tensor:
    """(B, H, W) images -> (B, H * W, 3) sets of (row, column, grey) in float32.

    Rows and columns run from -1 to 1. uint8 is divided by 255; floating images are taken to be
    in [0, 1] already.

    >>> pixel_set(torch.tensor([[[0, 255]]], dtype=torch.uint8))
    tensor([[[-1., -1.,  0.],
             [-1.,  1.,  1.]]])
    """
    if images.ndim != 3:
        raise ValueError(f"expected images of shape (B, H, W), got {tuple(images.shape)}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise TypeError(f"expected uint8 or floating images, got {images.dtype}")
    grey = images / 255 if images.dtype == torch.uint8 else images.float()
    row, column = torch.meshgrid(
        *(torch.linspace(-1, 1, size, device=images.device) for size in images.shape[1:]),
        indexing="ij",
    )
    return torch.stack((row.expand_as(grey), column.expand_as(grey), grey), -1).flatten(1, 2)
