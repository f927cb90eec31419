"""Who is near whom, against definitions in plain Python that look at every pair of points."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dumlp_pin import SetBatch, create_model
from dumlp_pin.models.neighbours import (
    as_padded,
    farthest_points,
    gather,
    interpolate,
    nearest,
    within,
    within_each,
)

Point = tuple[float, ...]

seeds = st.integers(0, 2**31)
dimensions = st.integers(1, 3)
counts = st.integers(1, 8)
many = settings(max_examples=60, deadline=None)


def square(a: Point, b: Point) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def points_of(x: Tensor) -> list[Point]:
    return [tuple(point) for point in x.tolist()]


def nearest_by_hand(query: Point, points: Sequence[Point], k: int) -> list[int]:
    """By distance; of equal ones the first in the order of coordinates."""
    by_distance = sorted(range(len(points)), key=lambda i: (square(query, points[i]), points[i], i))
    return by_distance[:k]


def farthest_by_hand(points: Sequence[Point], count: int) -> list[Point]:
    """The places that are chosen, not which of two points at the same place."""
    N = len(points)
    mean = tuple(sum(column) / N for column in zip(*points, strict=True))
    order = sorted(range(N), key=lambda i: points[i])
    chosen: list[int] = []
    while len(chosen) < min(count, N):

        def distance(i: int) -> float:
            if not chosen:
                return square(points[i], mean)
            return min(square(points[i], points[j]) for j in chosen)

        chosen.append(max((i for i in order if i not in chosen), key=distance))
    return [points[i] for i in chosen]


def draw(seed: int, sizes: Sequence[int], D: int, lattice: bool) -> list[Tensor]:
    """Sets in float64; those on a lattice are full of ties, and of points at the same place."""
    generator = torch.Generator().manual_seed(seed)
    if lattice:
        return [torch.randint(-1, 2, (n, D), generator=generator).double() for n in sizes]
    return [torch.randn(n, D, generator=generator).double() for n in sizes]


def padded(sets: list[Tensor], extra: int, fill: float) -> tuple[Tensor, Tensor]:
    x, mask = SetBatch.from_list(sets).to_padded(max(map(len, sets)) + extra)
    return torch.where(mask[:, :, None], x, fill), mask


sizes_of_sets = st.lists(st.integers(0, 9), min_size=1, max_size=3).filter(any)
fills = st.sampled_from([0.0, 1e30, float("nan"), float("-inf")])


@given(seed=seeds, sizes=sizes_of_sets, D=dimensions, count=counts, lattice=st.booleans())
@many
def test_farthest_points(seed: int, sizes: list[int], D: int, count: int, lattice: bool) -> None:
    sets = draw(seed, sizes, D, lattice)
    x, mask = padded(sets, extra=seed % 3, fill=float("nan"))
    index, kept = farthest_points(x, count, mask)
    for points, chosen, there in zip(sets, index, kept, strict=True):
        number = min(count, len(points))
        assert there.tolist() == [True] * number + [False] * (count - number)
        assert len(set(chosen[:number].tolist())) == number  # never one point twice
        assert not chosen[number:].any()
        if number:
            places = points_of(points[chosen[:number]])
            assert places == farthest_by_hand(points_of(points), count)


@given(seed=seeds, sizes=sizes_of_sets, D=dimensions, k=counts, lattice=st.booleans(), fill=fills)
@many
def test_nearest(seed: int, sizes: list[int], D: int, k: int, lattice: bool, fill: float) -> None:
    sets = draw(seed, sizes, D, lattice)
    x, mask = padded(sets, extra=seed % 3, fill=fill)
    queries = torch.stack(draw(seed + 1, [4] * len(sets), D, lattice))
    index, distances, kept = nearest(queries, x, k, mask)
    assert index.shape == distances.shape == kept.shape == (len(sets), 4, k)
    for b, points in enumerate(map(points_of, sets)):
        for m, query in enumerate(points_of(queries[b])):
            expected = nearest_by_hand(query, points, k)
            number = len(expected)
            assert kept[b, m].tolist() == [True] * number + [False] * (k - number)
            assert [points[i] for i in index[b, m, :number].tolist()] == [
                points[i] for i in expected
            ]
            assert len(set(index[b, m, :number].tolist())) == number
            assert not index[b, m, number:].any()
            squares = torch.tensor([square(query, points[i]) for i in expected]).double()
            torch.testing.assert_close(distances[b, m, :number], squares)
            assert distances[b, m, number:].isposinf().all()


@given(seed=seeds, sizes=sizes_of_sets, k=counts, lattice=st.booleans())
@many
def test_within(seed: int, sizes: list[int], k: int, lattice: bool) -> None:
    sets, radius = draw(seed, sizes, 2, lattice), 1.0
    x, mask = padded(sets, extra=1, fill=0.0)
    queries = torch.stack(draw(seed + 1, [3] * len(sets), 2, lattice))
    index, kept = within(queries, x, radius, k, mask)
    for b, points in enumerate(map(points_of, sets)):
        for m, query in enumerate(points_of(queries[b])):
            expected = [
                points[i]
                for i in nearest_by_hand(query, points, k)
                if square(query, points[i]) <= radius**2
            ]
            found = index[b, m][kept[b, m]].tolist()
            assert [points[i] for i in found] == expected
            assert (index[b, m] == index[b, m, 0])[~kept[b, m]].all()


def test_a_ball_query_worked_out() -> None:
    """On paper: around (0, 0), radius 2 holds (1, 0), (0, -2) on its edge, and not (2, 1)."""
    points = torch.tensor([[[2.0, 1.0], [0.0, -2.0], [1.0, 0.0], [0.0, 0.0], [9.0, 9.0]]])
    queries = torch.tensor([[[0.0, 0.0], [9.0, 8.0], [-9.0, 0.0]]])
    index, kept = within(queries, points, radius=2, k=4)
    assert index.tolist() == [[[3, 2, 1, 3], [4] * 4, [3] * 4]]
    assert kept.tolist() == [[[True, True, True, False], [True] + [False] * 3, [False] * 4]]
    # More are within than are asked for: the nearest.
    assert within(queries[:, :1], points, radius=2, k=2)[0].tolist() == [[[3, 2]]]


def test_balls_of_several_sizes_are_looked_for_at_once() -> None:
    points, mask = padded(draw(0, [30, 7], 3, lattice=False), extra=2, fill=0.0)
    balls = [(0.5, 4), (2.0, 12), (1.0, 1)]
    for ball, found in zip(balls, within_each(points, points, balls, mask), strict=True):
        for actual, expected in zip(found, within(points, points, *ball, mask), strict=True):
            assert torch.equal(actual, expected)


def test_of_equal_distances_the_first_in_the_order_of_coordinates() -> None:
    """Whatever the order of storage; on a lattice most distances are equal."""
    corners = [(-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)]
    for order in itertools.permutations(corners):
        x = torch.tensor([order])
        index, _, _ = nearest(torch.zeros(1, 1, 2), x, k=3)
        assert points_of(x[0, index[0, 0]]) == corners[:3]
        chosen, _ = farthest_points(x, 3)
        assert points_of(x[0, chosen[0]]) == [(-1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]


def test_two_points_at_one_place_are_two() -> None:
    twins = torch.tensor([[[1.0], [1.0], [0.0]]])
    assert sorted(farthest_points(twins, 3)[0][0].tolist()) == [0, 1, 2]
    assert sorted(nearest(twins[:, :1], twins, 2)[0][0, 0].tolist()) == [0, 1]


def test_distances_are_no_differences_of_large_numbers() -> None:
    """|a|^2 - 2 a b + |b|^2 in float32 would call these three points equally near."""
    x = torch.tensor([[[1000.0], [1000.5], [1000.25]]])
    index, squares, _ = nearest(torch.tensor([[[1000.0]]]), x, k=3)
    assert index.tolist() == [[[0, 2, 1]]]
    assert squares.tolist() == [[[0.0, 0.0625, 0.25]]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_precisions(dtype: torch.dtype) -> None:
    x = torch.tensor([[[0.0], [1.0], [3.0]]], dtype=dtype)
    index, squares, _ = nearest(x[:, 1:2] + 0.75, x, k=3)
    assert index.tolist() == [[[1, 2, 0]]]
    assert squares.dtype == torch.promote_types(dtype, torch.float32)
    assert interpolate(x, x, x).dtype == dtype
    assert farthest_points(x, 2)[0].tolist() == [[2, 0]]


def test_the_gradient_of_a_distance_is_that_of_its_two_points() -> None:
    x, mask = padded(draw(0, [6, 2], 3, lattice=False), extra=1, fill=float("nan"))
    queries = torch.randn(2, 3, 3).double().requires_grad_()
    x.requires_grad_()
    index, squares, kept = nearest(queries, x, 4, mask)
    squares[kept].sum().backward()
    assert x.grad is not None
    assert queries.grad is not None
    expected = torch.zeros_like(x)
    for b, m, k in kept.nonzero().tolist():
        expected[b, index[b, m, k]] += 2 * (x[b, index[b, m, k]] - queries[b, m]).detach()
    torch.testing.assert_close(x.grad, expected)
    torch.testing.assert_close(queries.grad.sum(1), -expected.sum(1))


@given(seed=seeds, sizes=sizes_of_sets, k=st.integers(1, 4), lattice=st.booleans(), fill=fills)
@many
def test_interpolate(seed: int, sizes: list[int], k: int, lattice: bool, fill: float) -> None:
    sets = draw(seed, sizes, 2, lattice)
    x, mask = padded(sets, extra=1, fill=fill)
    values = [torch.randn(len(points), 3).double() for points in sets]
    carried, _ = padded(values, extra=1, fill=fill)
    queries = torch.stack(draw(seed + 1, [4] * len(sets), 2, lattice))
    found = interpolate(queries, x, carried, k, mask)
    for b, points in enumerate(map(points_of, sets)):
        for m, query in enumerate(points_of(queries[b])):
            index = nearest_by_hand(query, points, k)
            on = [i for i in index if square(query, points[i]) == 0]
            weights = dict.fromkeys(on, 1.0) or {i: 1 / square(query, points[i]) for i in index}
            total = sum(weights.values())
            expected = torch.zeros(3).double()
            for i, weight in weights.items():
                expected += weight / total * values[b][i]
            if not lattice or k >= len(points):  # else values of equally near points are to choose
                torch.testing.assert_close(found[b, m], expected)
            assert found[b, m].isfinite().all()


def test_interpolation_next_to_a_point_has_its_value_and_a_finite_gradient() -> None:
    x = torch.tensor([[[0.0], [1.0]]])
    queries = torch.tensor([[[0.0], [1e-30], [1.0]]], requires_grad=True)
    values = torch.tensor([[[5.0], [7.0]]], requires_grad=True)
    found = interpolate(queries, x, values)
    assert found[0, :, 0].tolist() == [5.0, 5.0, 7.0]
    found.sum().backward()
    assert values.grad is not None
    assert queries.grad is not None
    assert values.grad[0, :, 0].tolist() == [2.0, 1.0]
    assert queries.grad.isfinite().all()


def test_gather_takes_from_the_same_set() -> None:
    values, index = torch.randn(2, 5, 3), torch.randint(0, 5, (2, 4, 6))
    taken = gather(values, index)
    for b, m, k in itertools.product(range(2), range(4), range(6)):
        assert torch.equal(taken[b, m, k], values[b, index[b, m, k]])
    assert not gather(values[:, :0], index).any()


def test_the_way_back_from_padding() -> None:
    sets = SetBatch.from_list([torch.randn(3, 2), torch.randn(0, 2), torch.randn(5, 2)])
    values, mask, back = as_padded(sets, features=2)
    assert mask is not None
    assert mask.sum(1).tolist() == [3, 0, 5]
    restored = back(values)
    assert isinstance(restored, SetBatch)
    assert torch.equal(restored.rows, sets.rows)
    with pytest.raises(ValueError, match=r"^expected 3 features, got 2 in an input of shape"):
        as_padded(sets, features=3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["pointnet2_modelnet40", "pct_modelnet40", "point_transformer_modelnet40"]
)
def test_a_training_step_can_be_captured(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model: Any = create_model(name).cuda().train()
    x = torch.rand(4, 1024, model.in_features, device="cuda")

    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        loss = model(x).square().sum()
        loss.backward()
        return loss

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    x.copy_(torch.rand_like(x))
    graph.replay()
    assert loss.isfinite()
