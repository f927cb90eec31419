from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from torch import Tensor

from dumlp_pin.data.augment import (
    Augmentation,
    random_drop,
    random_noise,
    random_rotation,
    random_scale,
    random_shift,
)

MODELNET40 = Augmentation(
    drop=0.875, scale=(0.8, 1.25), shift=0.1, noise=(0.01, 0.05), rotation=(0.06, 0.18)
)
STEPS: dict[str, Callable[..., Tensor]] = {
    "drop": lambda points, generator=None: random_drop(points, None, 0.875, generator)[0],
    "scale": lambda points, generator=None: random_scale(points, 0.8, 1.25, generator),
    "shift": lambda points, generator=None: random_shift(points, 0.1, generator),
    "noise": lambda points, generator=None: random_noise(points, 0.01, 0.05, generator),
    "rotation": lambda points, generator=None: random_rotation(points, 0.06, 0.18, generator),
    "all": lambda points, generator=None: MODELNET40(points, None, generator)[0],
}
every_step = pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
widths = pytest.mark.parametrize("F", [3, 6])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clouds(B: int, N: int, F: int = 6, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random points, with unit normals where F is 6."""
    points = torch.randn(B, N, F, generator=seeded(1), dtype=dtype)
    normals = torch.nn.functional.normalize(points[..., 3:], dim=-1)
    return torch.cat((points[..., :3], normals), -1)


def assert_mean(sample: Tensor, mean: float, variance: float) -> None:
    """Within five standard errors: a right mean fails once in two million seeds."""
    error = abs(sample.double().mean().item() - mean)
    assert error < 5 * math.sqrt(variance / sample.numel())


def assert_uniform(sample: Tensor, low: float, high: float) -> None:
    assert low <= sample.min()
    assert sample.max() <= high
    variance = (high - low) ** 2 / 12
    assert_mean(sample, (low + high) / 2, variance)
    # The square of a centred uniform number of width w has mean w^2 / 12 and variance w^4 / 180.
    assert_mean((sample - (low + high) / 2) ** 2, variance, (high - low) ** 4 / 180)


def assert_clipped_normal(sample: Tensor, sigma: float, largest: float) -> None:
    assert sample.abs().max() <= largest * (1 + 1e-6)
    assert_mean(sample, 0, sigma**2)
    # What is clipped, beyond z sigmas, counts z^2 instead of the tail's second moment.
    z = largest / sigma
    tail = math.erfc(z / math.sqrt(2))
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    second = 1 - tail - 2 * z * density + z * z * tail
    assert_mean(sample**2, sigma**2 * second, 2 * sigma**4)


class TestEveryStep:
    @widths
    @every_step
    def test_keeps_shape_and_dtype(self, step: Callable[..., Tensor], F: int) -> None:
        for dtype in (torch.float32, torch.float64):
            points = clouds(3, 17, F, dtype)
            changed = step(points, seeded())
            assert changed.shape == points.shape
            assert changed.dtype == dtype
            assert not changed.equal(points)

    @every_step
    def test_leaves_its_input_alone(self, step: Callable[..., Tensor]) -> None:
        points = clouds(3, 17)
        step(points)
        assert points.equal(clouds(3, 17))

    @every_step
    def test_same_seed_same_result(self, step: Callable[..., Tensor]) -> None:
        points = clouds(3, 17)
        assert step(points, seeded(5)).equal(step(points, seeded(5)))
        assert not step(points, seeded(5)).equal(step(points, seeded(6)))

    @every_step
    def test_draws_from_its_generator_only(self, step: Callable[..., Tensor]) -> None:
        state = torch.get_rng_state()
        step(clouds(3, 17), seeded())
        assert torch.get_rng_state().equal(state)

    @every_step
    def test_each_shape_has_its_own(self, step: Callable[..., Tensor]) -> None:
        points = clouds(1, 40).expand(2, -1, -1)
        first, second = step(points, seeded())
        assert not first.equal(second)

    @every_step
    def test_normals_stay_unit(self, step: Callable[..., Tensor]) -> None:
        norms = step(clouds(20, 50), seeded())[..., 3:].norm(dim=-1)
        torch.testing.assert_close(norms, torch.ones_like(norms))

    @every_step
    def test_takes_one_point(self, step: Callable[..., Tensor]) -> None:
        assert step(clouds(4, 1), seeded()).isfinite().all()

    @every_step
    def test_takes_no_shape(self, step: Callable[..., Tensor]) -> None:
        assert step(clouds(0, 5), seeded()).shape == (0, 5, 6)

    @widths
    @every_step
    def test_compiles_in_one_graph(self, step: Callable[..., Tensor], F: int) -> None:
        torch._dynamo.reset()
        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        for B, N in ((5, 17), (3, 17), (4, 19)):  # another size makes it compile for any
            points = clouds(B, N, F)
            torch.manual_seed(3)
            expected = step(points)
            torch.manual_seed(3)
            torch.testing.assert_close(compiled(points), expected, rtol=0, atol=0)

    @every_step
    @pytest.mark.parametrize("shape", [(4, 3), (2, 4, 4), (2, 0, 3)])
    def test_wants_points(self, step: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"points are \(B, N, 3\).*got shape"):
            step(torch.zeros(shape))

    @every_step
    def test_wants_floating_points(self, step: Callable[..., Tensor]) -> None:
        with pytest.raises(TypeError, match=r"points are floating numbers, got torch\.int64"):
            step(torch.zeros(2, 4, 3, dtype=torch.int64))


class TestDrop:
    def test_rows_move_as_a_whole(self) -> None:
        points, index = clouds(8, 200), torch.arange(200).expand(8, -1)
        dropped, source = random_drop(points, index, 0.875, seeded())
        for before, after, rows in zip(points, dropped, source, strict=True):
            assert after.equal(before[rows])

    def test_kept_points_stay_in_place(self) -> None:
        """Every row that is still anywhere is where it was."""
        index = torch.arange(200).expand(8, -1)
        _, source = random_drop(clouds(8, 200), index, 0.875, seeded())
        assert source.take_along_dim(source, 1).equal(source)

    def test_labels_of_shapes_stay(self) -> None:
        labels = torch.tensor([4, 2])
        assert random_drop(clouds(2, 9), labels, 0.875)[1] is labels
        assert random_drop(clouds(2, 9), None, 0.875)[1] is None

    def test_labels_keep_their_dtype(self) -> None:
        labels = torch.zeros(2, 9, dtype=torch.uint8)
        assert random_drop(clouds(2, 9), labels, 0.875)[1].dtype == torch.uint8

    @pytest.mark.parametrize("max_ratio", [0.875, 0.3])
    def test_ratio_is_uniform(self, max_ratio: float) -> None:
        B, N = 4000, 500
        index = torch.arange(N).expand(B, -1)
        _, source = random_drop(clouds(B, N, 3), index, max_ratio, seeded())
        dropped = (source != index).double().mean(1)
        # The ratio r is uniform, and the share of N points adds a variance of r (1 - r) / N.
        binomial = (max_ratio / 2 - max_ratio**2 / 3) / N
        assert_mean(dropped, max_ratio / 2, max_ratio**2 / 12 + binomial)
        spread = (dropped - max_ratio / 2) ** 2
        assert_mean(spread, max_ratio**2 / 12 + binomial, spread.var().item())
        below = (dropped < max_ratio / 4).double()
        assert_mean(below, 0.25, 0.25 * 0.75)

    def test_replacements_are_uniform_among_the_kept(self) -> None:
        B, N = 4000, 64
        index = torch.arange(N).expand(B, -1)
        _, source = random_drop(clouds(B, N, 3), index, 0.875, seeded())
        kept = source == index
        rank = (kept.cumsum(1) - 1).take_along_dim(source, 1)[~kept]  # which of the kept
        count = kept.sum(1, keepdim=True).expand(-1, N)[~kept]
        assert rank.min() >= 0
        assert (rank < count).all()
        # Uniform on 0 .. count - 1 has mean (count - 1) / 2 and variance (count^2 - 1) / 12.
        wide = count > 1
        standard = (rank - (count - 1) / 2)[wide] / ((count[wide] ** 2 - 1) / 12).sqrt()
        assert_mean(standard, 0, 1)
        assert_mean(standard**2, 1, 0.8)

    def test_one_point_is_always_kept(self) -> None:
        index = torch.arange(3).expand(5000, -1)
        _, source = random_drop(clouds(5000, 3, 3), index, 1.0, seeded())
        kept = (source == index).sum(1)
        assert kept.min() == 1  # and the case does occur that chance alone would keep none

    def test_nothing_to_drop(self) -> None:
        points = clouds(3, 17)
        assert random_drop(points, None, 0.0)[0].equal(points)

    @pytest.mark.parametrize("ratio", [-0.1, 1.1, math.nan])
    def test_wants_a_ratio(self, ratio: float) -> None:
        with pytest.raises(ValueError, match=f"from 0 to 1, got {ratio}"):
            random_drop(clouds(2, 4), None, ratio)

    @pytest.mark.parametrize("shape", [(3,), (2, 5), (2, 4, 1), ()])
    def test_wants_labels_that_fit(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"labels of 2 shapes of 4 points are \(2,\) or \(2, "):
            random_drop(clouds(2, 4), torch.zeros(shape), 0.5)


class TestScale:
    def test_one_factor_a_shape_of_coordinates_only(self) -> None:
        points = clouds(2000, 10, dtype=torch.float64)
        scaled = random_scale(points, 0.67, 1.5, seeded())
        factor = scaled[..., :3] / points[..., :3]
        torch.testing.assert_close(factor, factor[:, :1, :1].expand_as(factor))
        assert scaled[..., 3:].equal(points[..., 3:])
        assert_uniform(factor[:, 0, 0], 0.67, 1.5)

    @pytest.mark.parametrize("limits", [(0.0, 1.0), (1.5, 0.5), (0.5, math.inf), (math.nan, 1.0)])
    def test_wants_positive_factors(self, limits: tuple[float, float]) -> None:
        with pytest.raises(ValueError, match=r"factors of a scale are positive.*got"):
            random_scale(clouds(2, 4), *limits)


class TestShift:
    def test_one_shift_an_axis(self) -> None:
        points = clouds(2000, 10, dtype=torch.float64)
        shifted = random_shift(points, 0.2, seeded())
        shift = shifted[..., :3] - points[..., :3]
        torch.testing.assert_close(shift, shift[:, :1].expand_as(shift))
        assert shifted[..., 3:].equal(points[..., 3:])
        for axis in shift[:, 0].unbind(1):
            assert_uniform(axis, -0.2 - 1e-12, 0.2 + 1e-12)
        correlation = torch.corrcoef(shift[:, 0].T) - torch.eye(3)
        assert correlation.abs().max() < 5 / math.sqrt(2000)

    def test_wants_a_size(self) -> None:
        with pytest.raises(ValueError, match=r"a shift is, is finite and not negative; got -0\.1"):
            random_shift(clouds(2, 4), -0.1)


class TestNoise:
    @pytest.mark.parametrize(("sigma", "largest"), [(0.01, 0.05), (0.02, 0.02)])
    def test_coordinates_get_clipped_gaussian_noise(self, sigma: float, largest: float) -> None:
        points = torch.zeros(50, 200, 3, dtype=torch.float64)
        assert_clipped_normal(random_noise(points, sigma, largest, seeded()), sigma, largest)

    def test_normals_get_it_too_and_are_unit_again(self) -> None:
        points = torch.zeros(50, 200, 6, dtype=torch.float64)
        points[..., 5] = 1
        x, y, z = random_noise(points, 0.01, 0.05, seeded())[..., 3:].unbind(-1)
        torch.testing.assert_close(x * x + y * y + z * z, torch.ones_like(x))
        # Divided by z, the noise of x and y is as before, but for that of z, which is 1 % of it.
        for tilt in (x / z, y / z):
            assert_mean(tilt, 0, 0.01**2)
            assert_mean(tilt**2, 0.01**2 * (1 + 3 * 0.01**2), 2 * 0.01**4)

    @pytest.mark.parametrize("sizes", [(-0.1, 0.1), (0.1, -0.1), (math.inf, 0.1), (0.1, math.nan)])
    def test_wants_sizes(self, sizes: tuple[float, float]) -> None:
        with pytest.raises(ValueError, match="noise is, is finite and not negative; got"):
            random_noise(clouds(2, 4), *sizes)


class TestRotation:
    def matrices(self, B: int, sigma: float = 0.06, largest: float = 0.18) -> Tensor:
        """(B, 3, 3), the columns being where the axes go."""
        axes = torch.eye(3, dtype=torch.float64).expand(B, -1, -1)
        return random_rotation(axes, sigma, largest, seeded()).mT

    def test_is_a_rotation(self) -> None:
        R = self.matrices(100, 1.0, math.pi)
        unit = torch.eye(3, dtype=torch.float64).expand_as(R)
        torch.testing.assert_close(R @ R.mT, unit)
        torch.testing.assert_close(R.det(), torch.ones(100, dtype=torch.float64))

    def test_points_and_normals_turn_alike(self) -> None:
        points = clouds(5, 30, dtype=torch.float64)
        turned = random_rotation(points, 0.06, 0.18, seeded())
        R = self.matrices(5)
        torch.testing.assert_close(turned[..., :3], points[..., :3] @ R.mT)
        torch.testing.assert_close(turned[..., 3:], points[..., 3:] @ R.mT)

    @pytest.mark.parametrize(("sigma", "largest"), [(0.06, 0.18), (0.5, 0.4)])
    def test_angles(self, sigma: float, largest: float) -> None:
        """R = Rx Ry Rz; its entries give the angles back."""
        R = self.matrices(4000, sigma, largest)
        about_x = torch.atan2(-R[:, 1, 2], R[:, 2, 2])
        about_y = torch.asin(R[:, 0, 2])
        about_z = torch.atan2(-R[:, 0, 1], R[:, 0, 0])
        for angle in (about_x, about_y, about_z):
            assert_clipped_normal(angle, sigma, largest)
        torch.testing.assert_close(turn(0, about_x) @ turn(1, about_y) @ turn(2, about_z), R)

    def test_is_not_rounded_by_autocast(self) -> None:
        points = clouds(5, 30)
        expected = random_rotation(points, 0.06, 0.18, seeded())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert random_rotation(points, 0.06, 0.18, seeded()).equal(expected)

    def test_wants_sizes(self) -> None:
        with pytest.raises(ValueError, match="an angle is, is finite and not negative; got nan"):
            random_rotation(clouds(2, 4), 0.1, math.nan)


def turn(axis: int, angle: Tensor) -> Tensor:
    """(B, 3, 3), the textbook's rotation about an axis: the exponential of its generator."""
    generator = torch.zeros(3, 3, dtype=angle.dtype)
    first, second = (axis + 1) % 3, (axis + 2) % 3
    generator[first, second], generator[second, first] = -1, 1
    return torch.linalg.matrix_exp(angle[:, None, None] * generator)


class TestAugmentation:
    def test_makes_no_change_of_its_own_accord(self) -> None:
        points, labels = clouds(2, 5), torch.tensor([1, 2])
        augmented = Augmentation()(points, labels)
        assert augmented[0] is points
        assert augmented[1] is labels

    def test_is_its_steps_in_order(self) -> None:
        points, labels = clouds(4, 30), torch.arange(30).repeat(4, 1)
        random = seeded()
        expected, followed = random_drop(points, labels, 0.875, random)
        expected = random_scale(expected, 0.8, 1.25, random)
        expected = random_shift(expected, 0.1, random)
        expected = random_noise(expected, 0.01, 0.05, random)
        expected = random_rotation(expected, 0.06, 0.18, random)
        augmented = MODELNET40(points, labels, seeded())
        assert augmented[0].equal(expected)
        assert augmented[1].equal(followed)

    def test_order_can_be_another(self) -> None:
        """After shift and scale a point at the origin has moved by up to 0.2 x 1.5."""
        augmentation = Augmentation(scale=(0.67, 1.5), shift=0.2, order=("shift", "scale"))
        points, _ = augmentation(torch.zeros(5000, 1, 3), None, seeded())
        assert 0.29 < points.max() < 0.3
        swapped = Augmentation(scale=(0.67, 1.5), shift=0.2)
        points, _ = swapped(torch.zeros(5000, 1, 3), None, seeded())
        assert 0.19 < points.max() <= 0.2

    def test_compiles_with_labels(self) -> None:
        points, labels = clouds(3, 17), torch.arange(17).repeat(3, 1)
        compiled = torch.compile(MODELNET40, fullgraph=True, backend="aot_eager")
        torch.manual_seed(3)
        expected = MODELNET40(points, labels)
        torch.manual_seed(3)
        torch.testing.assert_close(compiled(points, labels), expected, rtol=0, atol=0)

    def test_is_a_value(self) -> None:
        assert Augmentation(shift=0.1) == Augmentation(shift=0.1)
        assert len({Augmentation(shift=0.1), Augmentation(shift=0.1)}) == 1
        with pytest.raises(FrozenInstanceError):
            Augmentation().shift = 0.1  # pyright: ignore[reportAttributeAccessIssue]

    def test_making_one_draws_no_random_number(self) -> None:
        state = torch.get_rng_state()
        Augmentation(drop=0.5, noise=(0.1, 0.1))
        assert torch.get_rng_state().equal(state)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"drop": 1.5}, "from 0 to 1, got 1.5"),
            ({"scale": (1.25, 0.8)}, "smallest first; got 1.25, 0.8"),
            ({"shift": -1.0}, "a shift is, is finite and not negative; got -1.0"),
            ({"noise": (0.01, -0.05)}, "noise is, is finite and not negative; got -0.05"),
            ({"rotation": (math.inf, 0.1)}, "an angle is, is finite and not negative; got inf"),
            ({"order": ("shfit",)}, "unknown step 'shfit' in order; did you mean 'shift'?"),
            ({"shift": 0.1, "order": ("scale",)}, "order has 'shift' 0 times instead of once"),
            ({"order": ("shift", "shift")}, "order has 'shift' 2 times instead of once"),
        ],
    )
    def test_bad_fields_are_reported_at_once(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            Augmentation(**fields)
