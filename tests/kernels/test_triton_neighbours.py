"""Who is near whom on a GPU: the very points that PyTorch's operations choose.

`make test-gpu` runs this on the device, `test_interpreted` in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dumlp_pin.kernels import neighbours as kernels
from dumlp_pin.models.neighbours import farthest_points, nearest, within

pytestmark = pytest.mark.gpu


def sets(device: torch.device, dimensions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A lattice full of ties, a set of one point, an empty one, and one without ties."""
    generator = torch.Generator().manual_seed(dimensions)
    points = torch.randint(-2, 3, (4, 17, dimensions), generator=generator).double()
    points[3] = torch.randn(17, dimensions, generator=generator)
    mask = torch.rand(4, 17, generator=generator) < 0.7
    mask[1], mask[2] = torch.arange(17) == 3, False
    return points.to(device, dtype), mask.to(device)


def with_and_without(monkeypatch: pytest.MonkeyPatch, compute: Callable[[], Any]) -> None:
    by_kernels = compute()
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "applies", lambda points: False)
        by_pytorch = compute()
    for actual, expected in zip(by_kernels, by_pytorch, strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_the_same_points(
    dimensions: int, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, mask = sets(device, dimensions, dtype)
    assert kernels.applies(points)
    for count in (1, 7, 20):  # more than there are, too
        with_and_without(monkeypatch, lambda: farthest_points(points, count, mask))  # noqa: B023
        with_and_without(monkeypatch, lambda: nearest(points[:, :3], points, count, mask))  # noqa: B023
    with_and_without(monkeypatch, lambda: farthest_points(points, 17))
    with_and_without(monkeypatch, lambda: within(points[:, :3], points, 1.0, 8))


def test_bfloat16_is_compared_in_float32(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, mask = sets(device, 3, torch.bfloat16)
    with_and_without(monkeypatch, lambda: nearest(points[:, :3], points, 5, mask))
    with_and_without(monkeypatch, lambda: farthest_points(points, 5, mask))


def test_larger_sets_and_spaces_are_left_to_pytorch(device: torch.device) -> None:
    assert kernels.applies(torch.empty(1, 8192, 3, device=device))
    for N, D in ((8193, 3), (0, 3), (10, 4)):
        assert not kernels.applies(torch.empty(1, N, D, device=device))


def test_gradients_go_to_the_chosen(device: torch.device) -> None:
    points, mask = sets(device, 3, torch.float64)
    points.requires_grad_()
    _, square, kept = nearest(points.detach()[:, :4] + 0.25, points, 3, mask)
    square[kept].sum().backward()
    assert points.grad is not None
    assert points.grad[mask].any()
    assert not points.grad[~mask].any()
