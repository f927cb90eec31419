"""What is around an element, by waves, is what a look at every pair of elements finds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dumlp_pin import SetBatch, create_model
from dumlp_pin.models.surroundings import Surroundings, soft_balls

PERIOD = 2.8


def ball(offsets: Tensor, scale: float, scales: list[float]) -> Tensor:
    """The weight of an element at these offsets (..., D), one wave after another."""
    waves, amplitudes = map(torch.from_numpy, soft_balls(scales, offsets.shape[-1], PERIOD))
    angles = 2 * torch.pi / PERIOD * offsets @ waves.mT.double()
    return angles.cos() @ amplitudes[scales.index(scale)]


def by_pairs(x: Tensor, scale: float, scales: list[float], dimensions: int) -> Tensor:
    """Of one set (N, F), from the definition of weighted means and covariances."""
    places = x[:, :dimensions]
    weight = ball(places[:, None] - places, scale, scales)
    part = weight / weight.sum(1, keepdim=True)
    mean = part @ x
    off = x[None] - mean[:, None]  # (N, N, F)
    covariance = torch.einsum("ij,ija,ijb->iab", part, off, off)
    unit = torch.ones(x.shape[1], dtype=x.dtype)
    unit[:dimensions] = scale
    first, second = torch.triu_indices(x.shape[1], x.shape[1])
    covariance = (covariance / unit[:, None] / unit)[:, first, second]
    mean[:, :dimensions] -= places
    return torch.cat((weight.mean(1, keepdim=True).log(), mean / unit, covariance), 1)


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_waves_find_what_pairs_do(dimensions: int) -> None:
    x, scales = draw(40, dimensions + 2), [0.3, 0.6]
    around = Surroundings(dimensions + 2, scales, dimensions, PERIOD).double()
    expected = torch.cat([x, *(by_pairs(x, s, scales, dimensions) for s in scales)], 1)
    torch.testing.assert_close(around(x[None])[0], expected, rtol=1e-5, atol=1e-5)
    assert around.out_features == expected.shape[1]


@pytest.mark.parametrize("scale", [0.2, 0.4])
def test_a_ball_is_soft_round_and_nowhere_negative(scale: float) -> None:
    offsets = draw(5000, 3) * PERIOD / 2
    weight, distance = ball(offsets, scale, [scale]), offsets.norm(dim=1)
    assert weight.min() > -1e-3
    assert weight.max() <= 1
    # Near a Gaussian, if somewhat wider: the series ends.
    gauss = torch.exp(-0.5 * (distance / scale) ** 2)
    assert (weight - gauss).abs().max() < 0.25
    assert (weight - gauss).abs().mean() < 0.03
    # Round: as far away in other directions it weighs the same.
    directions = torch.nn.functional.normalize(draw(100, 3, seed=1), dim=1)
    at_scale = ball(directions * scale, scale, [scale])
    assert at_scale.std() < 0.02
    assert math.isclose(at_scale.mean(), math.exp(-0.5), abs_tol=0.2)


def test_a_lonely_element_has_only_itself_around() -> None:
    x = torch.tensor([[[0.9, 0.9, 0.9, 1.0]]])
    found = Surroundings(4, [0.2])(x)[0, 0, 4:]
    assert found.shape == (1 + 4 + 10,)
    torch.testing.assert_close(found[:4], torch.zeros(4))
    torch.testing.assert_close(found[4], torch.tensor(1.0))  # the mean of what is no place
    torch.testing.assert_close(found[5:], torch.zeros(10), atol=1e-4, rtol=0)


def test_all_forms_of_sets_find_the_same_and_nothing_in_the_padding() -> None:
    sets = [draw(n, 6, seed=n).float() for n in (17, 1, 40)]
    around = Surroundings(6, [0.25])
    alone = [around(x[None])[0] for x in sets]
    batch = SetBatch.from_list(sets)
    torch.testing.assert_close(around(batch).rows, torch.cat(alone), rtol=1e-4, atol=1e-4)
    padded, mask = batch.to_padded()
    padded = padded.masked_fill(~mask[:, :, None], torch.nan)
    found = around(padded, mask)
    torch.testing.assert_close(found[mask], torch.cat(alone), rtol=1e-4, atol=1e-4)
    assert not found[~mask].any()


def test_half_precision_loses_only_its_own_digits() -> None:
    """What cancels is counted with more, whatever type the model has."""
    x, around = draw(2, 300, 6).to(torch.bfloat16), Surroundings(6, [0.1, 0.2])
    exact = around.double()(x.double())
    half = around.bfloat16()(x)
    assert half.dtype == torch.bfloat16
    assert (half - exact).norm() < 0.005 * exact.norm()
    assert torch.equal(around.double()(x.double()), exact)


def test_a_model_with_surroundings_says_that_it_cannot_stream() -> None:
    model = create_model("dumlp_pin_modelnet40_plus")
    with pytest.raises(TypeError, match="each of its 1 stages tells every element"):
        model.stream()


@pytest.mark.parametrize("dimensions", [0, 3])
def test_a_place_is_some_of_the_features(dimensions: int) -> None:
    message = f"the first {dimensions} features are a place, but there are 2"
    with pytest.raises(ValueError, match=f"^{message}$"):
        Surroundings(2, [0.2], dimensions)


@pytest.mark.parametrize("scales", [[], [0.2, 0.0], [-1.0]])
def test_scales_are_lengths(scales: list[float]) -> None:
    with pytest.raises(ValueError, match="scales of surroundings are positive lengths"):
        Surroundings(6, scales)


def test_under_autocast_waves_keep_their_digits() -> None:
    x, around = draw(2, 100, 6).float(), Surroundings(6, [0.25])
    exact = around(x)
    with torch.autocast("cpu", torch.bfloat16):
        found = around(x)
    assert torch.equal(found, exact)
