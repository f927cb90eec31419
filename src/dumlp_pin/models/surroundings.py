"""What is around each element, in time linear in the number of elements.

A soft ball around a place is a Fourier series: k(p - q) = phi(p)^T A phi(q), with cosines and sines
phi and a diagonal A. So a sum over all elements q within the ball around each element p,

    sum_q k(p - q) v(q) = phi(p)^T A (sum_q phi(q) v(q)^T),

is the paper's pair of blocks with fixed weights: phi^T V is an aggregation, a feature of the whole
set, and multiplying it by phi(p) carries it back to the elements. No element looks at another one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dumlp_pin._layout import SetsT, open_sets, without_padding
from dumlp_pin.functional import dot_product

LEAST = 1e-3  # of the largest amplitude: what is smaller is left out
AMPLITUDE = 2.0**-50  # the unit of those that are kept, which are 1 in sum
CUT = 1.8  # standard deviations at which the series under the square ends


class Surroundings(nn.Module):
    """Beside the features of each element how many others are around it, and what they are like.

    For each of `scales`, about the standard deviation of a ball: the logarithm of the part of the
    set that is in it; the mean of the features there, that of places relative to its own; and their
    covariance. Lengths are counted in scales. The first `dimensions` features are a place, from -1
    to 1 in each; places that differ by nearly `period` are near each other, around the back.

    >>> around = Surroundings(6, scales=[0.2, 0.4])
    >>> around(torch.rand(2, 100, 6)).shape  # 6 + 2 (1 + 6 + 21)
    torch.Size([2, 100, 62])
    """

    # Integers, which stay what they are when a model is taken to half precision.
    waves: Tensor  # (dimensions, W)
    amplitudes: Tensor  # (scales, W), in units of AMPLITUDE

    def __init__(
        self,
        in_features: int,
        scales: Sequence[float],
        dimensions: int = 3,
        period: float = 2.8,
    ) -> None:
        super().__init__()
        if not scales or min(scales) <= 0:
            raise ValueError(f"scales of surroundings are positive lengths, got {list(scales)}")
        if not 1 <= dimensions <= in_features:
            raise ValueError(
                f"the first {dimensions} features are a place, but there are {in_features}"
            )
        self.scales, self.dimensions, self.in_features = tuple(scales), dimensions, in_features
        pairs = in_features * (in_features + 1) // 2
        self.out_features = in_features + len(scales) * (1 + in_features + pairs)
        self.base = 2 * math.pi / period
        waves, amplitudes = soft_balls(scales, dimensions, period)
        amplitudes = np.rint(amplitudes / AMPLITUDE).astype(np.int64)
        self.register_buffer("waves", torch.tensor(waves.T), persistent=False)
        self.register_buffer("amplitudes", torch.tensor(amplitudes), persistent=False)

    def forward(self, x: SetsT, mask: Tensor | None = None) -> SetsT:
        """(B, N, in_features), or a SetBatch -> (B, N, out_features), or a SetBatch."""
        given, sets = open_sets(x, mask)
        if given.shape[-1] != self.in_features:
            raise ValueError(
                f"expected {self.in_features} features, got {given.shape[-1]} "
                f"in an input of shape {tuple(given.shape)}"
            )
        values = sets.fill(given, 0)
        # Waves cancel: what they leave needs more digits than half precision has.
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        with without_autocast(values.device.type):
            around = self._around(values, sets, mask)
        return without_padding(sets.wrap(torch.cat((given, around.to(given.dtype)), -1)), mask)

    def _around(self, values: Tensor, sets: Any, mask: Tensor | None) -> Tensor:
        F, places = self.in_features, values[..., : self.dimensions]
        first, second = torch.triu_indices(F, F, device=values.device)
        is_place = torch.arange(F, device=values.device) < self.dimensions
        angles = places @ (self.base * self.waves.to(values.dtype))
        waves = torch.cat((angles.cos(), angles.sin()), -1)
        products = values[..., first] * values[..., second]
        moments = torch.cat((torch.ones_like(values[..., :1]), values, products), -1)
        of_set = dot_product(
            [sets.wrap(waves), sets.wrap(moments)], mask
        )  # (B, 2 W, 1 + F + pairs)
        sizes = sets.spread(of_set[:, 0, :1])  # the first wave is 1 everywhere
        blocks = sets.to_blocks(waves)
        found = []
        all_amplitudes = self.amplitudes.to(values.dtype) * AMPLITUDE
        for scale, amplitudes in zip(self.scales, all_amplitudes, strict=True):
            in_ball = amplitudes.repeat(2)[:, None] * of_set
            sums = sets.from_blocks(blocks @ sets.block_spread(in_ball))
            count, mean, square = sums.tensor_split([1, 1 + F], -1)
            # An element is in its own ball; waves that were left out may take some of it away.
            count = count.clamp(min=1)
            mean, square = mean / count, square / count
            covariance = square - mean[..., first] * mean[..., second]
            relative = mean - nn.functional.pad(places, (0, F - self.dimensions))
            unit = torch.where(is_place, scale, 1.0).to(values.dtype)
            part = count / sizes.clamp(min=1)
            found += [part.log(), relative / unit, covariance / (unit[first] * unit[second])]
        return torch.cat(found, -1)

    def extra_repr(self) -> str:
        return (
            f"scales={self.scales}, dimensions={self.dimensions}, waves={self.amplitudes.shape[1]}"
        )


def without_autocast(device_type: str) -> AbstractContextManager[Any]:
    # Not a context that changes nothing: exported programs would have it.
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def soft_balls(
    scales: Sequence[float], dimensions: int, period: float
) -> tuple[np.ndarray, np.ndarray]:
    """Waves (W, dimensions), as numbers of them in a period, and amplitudes (scales, W).

    The first wave is 0. sum_w amplitude_w cos(2 pi wave_w . d / period) is about a Gaussian of d: 1
    at 0, and nowhere negative, being the square of a series of half as many waves.

    >>> waves, amplitudes = soft_balls([0.5], dimensions=1, period=4.0)
    >>> waves.T, amplitudes.round(2)
    (array([[0, 1, 2]]), array([[0.37, 0.5 , 0.13]]))
    """
    base = 2 * math.pi / period
    # The root of a Gaussian is wider by the root of 2, its series narrower.
    reach = CUT / (math.sqrt(2) * min(scales) * base)
    root = _lattice(int(reach), dimensions)
    root = root[(root**2).sum(1) <= reach**2]
    waves = _lattice(2 * int(reach), dimensions)
    # Of a wave and its opposite one is enough, those after zero: cosines are even.
    waves = waves[len(waves) // 2 :]
    twice = np.where(waves.any(1), 2.0, 1.0)
    amplitudes = np.empty((len(scales), len(waves)))
    for row, scale in zip(amplitudes, scales, strict=True):
        series = np.zeros([4 * int(reach) + 1] * dimensions)
        series[tuple(root.T)] = np.exp(-(root**2).sum(1) * (scale * base) ** 2)
        row[:] = np.fft.fftn(np.fft.ifftn(series) ** 2).real[tuple(waves.T)] * twice
    amplitudes /= amplitudes.sum(1, keepdims=True)
    kept = (amplitudes > LEAST * amplitudes.max()).any(0)
    amplitudes = amplitudes[:, kept]
    return waves[kept], amplitudes / amplitudes.sum(1, keepdims=True)


def _lattice(reach: int, dimensions: int) -> np.ndarray:
    """All points of integers from -reach to reach."""
    return np.indices([2 * reach + 1] * dimensions).reshape(dimensions, -1).T - reach
