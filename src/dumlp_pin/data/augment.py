"""Random changes to point clouds that leave their meaning, a whole batch at a time.

Points are (B, N, 3), or (B, N, 6) with a normal after the coordinates. Every shape gets random
numbers of its own. All of it stays on the device of the points, waits for nothing and has no shape
that depends on a value, so it can be compiled, and captured in a CUDA graph. (`torch.compile` takes
no `generator`: in compiled code the random numbers are those of `torch.manual_seed`.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from dumlp_pin._errors import nearest

LabelsT = TypeVar("LabelsT", Tensor, None)


@dataclass(frozen=True)
class Augmentation:
    """Which changes are made, how strong they are, and in which order; None leaves one out.

    The fields hold what the functions of this file take after the points. Labels are (B, N), one a
    point, and follow their points; or (B,), one a shape, or None, and come back as they are.

    >>> augmentation = Augmentation(scale=(0.67, 1.5), shift=0.2, order=("shift", "scale"))
    >>> points, labels = augmentation(torch.rand(2, 1024, 3), torch.tensor([3, 5]))
    >>> points.shape, labels
    (torch.Size([2, 1024, 3]), tensor([3, 5]))
    """

    drop: float | None = None  # the largest ratio
    scale: tuple[float, float] | None = None  # the smallest factor, the largest
    shift: float | None = None  # the largest, along each axis
    noise: tuple[float, float] | None = None  # sigma, the largest
    rotation: tuple[float, float] | None = None  # sigma, the largest, in radians
    order: tuple[str, ...] = ("drop", "scale", "shift", "noise", "rotation")

    def __post_init__(self) -> None:
        steps = ("drop", "scale", "shift", "noise", "rotation")
        for step in self.order:
            if step not in steps:
                raise ValueError(f"unknown step {step!r} in order{nearest(step, steps)}")
        for step in steps:
            count = self.order.count(step)
            if count > 1 or (count == 0 and getattr(self, step) is not None):
                raise ValueError(f"order has {step!r} {count} times instead of once: {self.order}")
        # The steps know what they accept: a bad number is reported here, not in the first batch.
        self(torch.zeros(1, 1, 6, device="cpu"), None, Generator())

    def __call__(
        self, points: Tensor, labels: LabelsT, generator: Generator | None = None
    ) -> tuple[Tensor, LabelsT]:
        for step in self.order:
            if step == "drop" and self.drop is not None:
                points, labels = random_drop(points, labels, self.drop, generator)
            elif step == "scale" and self.scale is not None:
                points = random_scale(points, *self.scale, generator)
            elif step == "shift" and self.shift is not None:
                points = random_shift(points, self.shift, generator)
            elif step == "noise" and self.noise is not None:
                points = random_noise(points, *self.noise, generator)
            elif step == "rotation" and self.rotation is not None:
                points = random_rotation(points, *self.rotation, generator)
        return points, labels


def random_drop(
    points: Tensor, labels: LabelsT, max_ratio: float, generator: Generator | None = None
) -> tuple[Tensor, LabelsT]:
    """Drop each point with a chance drawn from 0 to `max_ratio`, one chance a shape.

    A copy of a random point that was kept takes the place of a dropped one, so N stays; one point
    is always kept. What a point carries moves as a whole, its label too where labels are (B, N).

    >>> points, labels = torch.rand(1, 6, 3), torch.arange(6)[None]
    >>> dropped, followed = random_drop(points, labels, 0.875)
    >>> torch.equal(dropped, points[:, followed[0]])
    True
    """
    _check_points(points)
    if not 0 <= max_ratio <= 1:
        raise ValueError(f"a ratio of points to drop is from 0 to 1, got {max_ratio}")
    B, N, _ = points.shape
    if labels is not None and labels.shape not in ((B,), (B, N)):
        raise ValueError(
            f"labels of {B} shapes of {N} points are {(B,)} or {(B, N)}, got {tuple(labels.shape)}"
        )
    single = points.float()  # fewer bits would not tell N points apart
    ratio = max_ratio * _uniform(single, (1,), generator)
    score = _uniform(single, (N,), generator)
    # The highest score is kept whatever the ratio.
    kept = score >= torch.minimum(ratio, score.amax(1, keepdim=True))
    kept_so_far = kept.cumsum(1)
    # A dropped point takes a random one of the kept: the one where their count reaches `nth`.
    nth = (_uniform(single, (N,), generator) * kept_so_far[:, -1:]).long() + 1
    position = torch.arange(N, device=points.device)
    source = torch.where(kept, position, torch.searchsorted(kept_so_far, nth))
    if labels is not None and labels.ndim == 2:
        labels = labels.gather(1, source)
    return points.gather(1, source[..., None].expand_as(points)), labels


def random_scale(
    points: Tensor, low: float, high: float, generator: Generator | None = None
) -> Tensor:
    """Multiply the coordinates by a factor from `low` to `high`, one a shape."""
    _check_points(points)
    if not 0 < low <= high < math.inf:
        raise ValueError(f"factors of a scale are positive, the smallest first; got {low}, {high}")
    factor = low + (high - low) * _uniform(points, (1, 1), generator)
    return torch.cat((points[..., :3] * factor, points[..., 3:]), -1)


def random_shift(points: Tensor, largest: float, generator: Generator | None = None) -> Tensor:
    """Move each shape by up to `largest` either way along each axis."""
    _check_points(points)
    _check_sizes("a shift", largest)
    shift = largest * (2 * _uniform(points, (1, 3), generator) - 1)
    return torch.cat((points[..., :3] + shift, points[..., 3:]), -1)


def random_noise(
    points: Tensor, sigma: float, largest: float, generator: Generator | None = None
) -> Tensor:
    """Add Gaussian noise, clipped at `largest`, to every feature; normals are made unit again."""
    _check_points(points)
    _check_sizes("noise", sigma, largest)
    points = points + _clipped_normal(points, points.shape, sigma, largest, generator)
    return torch.cat((points[..., :3], F.normalize(points[..., 3:], dim=-1)), -1)


def random_rotation(
    points: Tensor, sigma: float, largest: float, generator: Generator | None = None
) -> Tensor:
    """Rotate each shape and its normals about z, then y, then x, by clipped Gaussian angles."""
    _check_points(points)
    _check_sizes("an angle", sigma, largest)
    angles = _clipped_normal(points, (3, len(points), 1, 1), sigma, largest, generator)
    # Plane by plane, not as a matrix product, which autocast and TF32 would round.
    x, y, z = points.unflatten(-1, (-1, 3)).unbind(-1)  # each (B, N, 1), or 2 with the normal
    x, y = _turn(x, y, angles[2])
    z, x = _turn(z, x, angles[1])
    y, z = _turn(y, z, angles[0])
    return torch.stack((x, y, z), -1).flatten(-2)


def _turn(u: Tensor, v: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate in the plane of u and v, from u towards v."""
    cos, sin = angle.cos(), angle.sin()
    return cos * u - sin * v, sin * u + cos * v


def _uniform(points: Tensor, per_shape: tuple[int, ...], generator: Generator | None) -> Tensor:
    """(B, *per_shape) numbers from 0 to 1."""
    return points.new_empty(len(points), *per_shape).uniform_(generator=generator)


def _clipped_normal(
    points: Tensor,
    shape: tuple[int, ...],
    sigma: float,
    largest: float,
    generator: Generator | None,
) -> Tensor:
    # Not `torch.randn`: with a generator, even None, it cannot be compiled for any batch size.
    return points.new_empty(shape).normal_(0, sigma, generator=generator).clamp(-largest, largest)


def _check_points(points: Tensor) -> None:
    if points.ndim != 3 or points.shape[1] == 0 or points.shape[2] not in (3, 6):
        raise ValueError(
            f"points are (B, N, 3), or (B, N, 6) with normals, got shape {tuple(points.shape)}"
        )
    if not points.is_floating_point():
        raise TypeError(f"points are floating numbers, got {points.dtype}")


def _check_sizes(what: str, *sizes: float) -> None:
    for size in sizes:
        if not 0 <= size < math.inf:
            raise ValueError(f"how strong {what} is, is finite and not negative; got {size}")
