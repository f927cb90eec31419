"""The paper's backbone for sets of images: six convolutions, then the mean over the picture."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from dumlp_pin.batchnorm import BatchNorm


class ConvNet(nn.Module):
    """Images (T, C, H, W) to vectors (T, widths[-1]).

    Every convolution is 3 x 3 with batch norm and ReLU; max pooling follows the second and fourth.

    >>> import torch
    >>> ConvNet(3, (8, 8, 16, 16, 32, 32))(torch.rand(2, 3, 49, 40)).shape
    torch.Size([2, 32])
    """

    POOL_AFTER = (1, 3)

    def __init__(self, in_channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.in_channels = in_channels
        channels = [in_channels, *widths]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, kernel_size=3, padding=1)
            for before, after in zip(channels, widths, strict=False)
        )
        self.norms = nn.ModuleList(BatchNorm(width) for width in widths)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask` (T,) is False for what is padding and no image."""
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise ValueError(
                f"expected images (T, {self.in_channels}, H, W), got shape {tuple(x.shape)}"
            )
        if mask is not None:
            x = x.masked_fill(~mask[:, None, None, None], 0)
        for layer, convolution in enumerate(self.convolutions):
            x = convolution(x)
            pixels = None if mask is None else mask[:, None, None].expand(-1, *x.shape[2:])
            # Batch norm takes features last.
            x = F.relu(self.norms[layer](x.permute(0, 2, 3, 1), pixels)).permute(0, 3, 1, 2)
            if layer in self.POOL_AFTER:
                x = F.max_pool2d(x, 2)
        return x.mean((2, 3))
