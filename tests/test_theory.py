import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dumlp_pin.theory import (
    CardinalityBounds,
    SetFunction,
    cardinality_bounds,
    decompose,
    decompose_tensor,
    minimum_dimension_decomposition,
    rank_instability,
)

EPS = torch.finfo(torch.float64).eps
quick = settings(max_examples=40, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)
sizes = st.integers(1, 4)


def normal(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def random_invariant_function(seed: int, p: int, shape: tuple[int, ...]) -> SetFunction:
    """Sums over the set of random features, through a random MLP."""
    W_in, W_hidden = normal(seed, p, 8), normal(seed + 1, 8, 8)
    W_out = normal(seed + 2, 8, math.prod(shape))

    def f(X: Tensor) -> Tensor:
        return (torch.tanh(torch.tanh(X @ W_in).sum(dim=0) @ W_hidden) @ W_out).reshape(shape)

    return f


def random_set(seed: int, distinct: int, repeated: int, p: int = 3) -> Tensor:
    """Sorted rows, `distinct` different ones and `repeated` further copies of some of them."""
    elements = normal(seed, distinct, p).unique(dim=0)
    generator = torch.Generator().manual_seed(seed)
    copies = torch.randint(distinct, (repeated,), generator=generator)
    return elements[torch.cat([torch.arange(distinct), copies]).sort().values]


def recombine(factors: tuple[SetFunction, ...], X: Tensor) -> Tensor:
    """sum_i of the outer products of row i of all factors, by broadcasting one axis at a time."""
    products = torch.ones(len(X), dtype=torch.float64)
    for g in factors:
        products = products[..., None] * g(X).reshape(len(X), *[1] * (products.ndim - 1), -1)
    return products.sum(dim=0)


def khatri_rao(factors: list[Tensor]) -> Tensor:
    """Row i holds all products of one entry from row i of each factor: (D, prod c_j)."""
    products = torch.ones(len(factors[0]), 1, dtype=torch.float64)
    for factor in factors:
        products = (products[:, :, None] * factor[:, None, :]).flatten(1)
    return products


# ------------------------------------------------------------------ minimum dimension decomposition


@quick
@given(seeds, st.integers(1, 5), st.integers(0, 4), st.integers(1, 7))
def test_lemma_gives_every_solution_and_only_solutions(seed, m, extra, n):  # n < m and n >= m
    columns = m + extra
    A, B, Lambda = normal(seed, m, n), normal(seed + 1, m, columns), normal(seed + 2, extra, n)
    solutions = minimum_dimension_decomposition(A, B)
    # Forward error of an SVD solve: a modest multiple of cond(B) roundings of the solution.
    C = solutions.at(Lambda)
    size = torch.linalg.norm(B) * torch.linalg.norm(C)
    tolerance = 8 * columns * EPS * torch.linalg.cond(B)
    assert torch.linalg.norm(B @ C - A) <= tolerance * size
    torch.testing.assert_close(
        solutions.kernel.T @ solutions.kernel,
        torch.eye(extra).double(),
        rtol=0,
        atol=8 * columns * EPS,
    )

    # Any C with B C = A, made without the solver: its A is defined from it.
    C = normal(seed + 3, columns, n)
    solutions = minimum_dimension_decomposition(B @ C, B)
    Lambda = solutions.kernel.T @ C
    assert torch.linalg.norm(solutions.at(Lambda) - C) <= tolerance * torch.linalg.norm(C)
    assert torch.linalg.norm(solutions.particular) <= torch.linalg.norm(C) * (1 + tolerance)


def test_square_matrix_has_one_solution():
    solutions = minimum_dimension_decomposition(normal(0, 3, 2), normal(1, 3, 3))
    assert solutions.kernel.shape == (3, 0)
    assert torch.equal(solutions.at(torch.zeros(0, 2)), solutions.particular)


@pytest.mark.parametrize(
    ("A", "B", "message"),
    [
        (torch.ones(2, 3), torch.ones(2, 4), r"B of shape \(2, 4\) has rank 1, .* rank 2"),
        (torch.ones(2, 3), torch.zeros(2, 4), "has rank 0"),
        (torch.ones(3, 3), torch.ones(2, 4), "A has 3 rows and B has 2"),
        (torch.ones(4, 3), torch.ones(4, 2), r"B has shape \(4, 2\), .* rows <= columns"),
        (torch.ones(0, 3), torch.ones(0, 2), r"B has shape \(0, 2\), .* 1 <= rows"),
        (torch.ones(3), torch.ones(3, 3), r"A has shape \(3,\), expected a matrix"),
        (torch.ones(1, 1), torch.tensor([[math.inf, 1]]), "B holds NaN or infinite"),
    ],
)
def test_lemma_refuses(A, B, message):
    with pytest.raises(ValueError, match=message):
        minimum_dimension_decomposition(A, B)


def test_kernel_coordinates_of_the_wrong_shape():
    solutions = minimum_dimension_decomposition(torch.ones(1, 2), torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"Lambda has shape \(3, 2\), expected \(2, 2\)"):
        solutions.at(torch.ones(3, 2))


# ------------------------------------------------------------------------------------- the theorems


@quick
@given(seeds, st.lists(sizes, min_size=1, max_size=4), st.integers(0, 3), st.integers(0, 5))
def test_decomposition(seed, shape, above, repeated):
    shape = tuple(shape)
    X = random_set(seed, cardinality_bounds(shape).sufficient + above, repeated)
    f = random_invariant_function(seed, 3, shape)
    factors = decompose_tensor(f, shape)
    N = len(X)
    # Each entry is one entry of f(X), divided by at most N holders and summed over them: fewer
    # than N + 1 roundings. X is sorted, so both sides take f in the same order of elements.
    Y = f(X)
    assert (recombine(factors, X) - Y).abs().le(N * EPS * Y.abs()).all()

    permutation = torch.from_numpy(np.random.default_rng(seed).permutation(N))
    for g, c in zip(factors, shape, strict=True):
        assert g(X).shape == (N, c)
        assert g(X).dtype == torch.float64
        assert torch.equal(g(X[permutation]), g(X)[permutation])


@quick
@given(seeds, sizes, sizes, st.integers(0, 3), st.integers(0, 5))
def test_matrix_factor_is_the_shortest_solution_of_the_lemma(seed, s, t, above, repeated):
    X = random_set(seed, min(s, t) + above, repeated)
    f = random_invariant_function(seed, 3, (s, t))
    g1, g2 = decompose(f, s, t)
    Y, unit, solved = (f(X), g1(X), g2(X)) if s <= t else (f(X).T, g2(X), g1(X))
    solutions = minimum_dimension_decomposition(Y, unit.T)
    tolerance = 8 * len(X) * EPS * torch.linalg.cond(unit) * torch.linalg.norm(Y)
    assert torch.linalg.norm(solutions.particular - solved) <= tolerance


@quick
@given(seeds, st.lists(sizes, min_size=1, max_size=4), st.integers(0, 30))
def test_too_few_distinct_elements_however_many_in_all(seed, shape, repeated):
    shape = tuple(shape)
    needed = cardinality_bounds(shape).sufficient
    # One below the threshold; a threshold of 1 leaves the empty set.
    X = random_set(seed, needed - 1, repeated) if needed > 1 else torch.ones(0, 3)
    message = f"needs at least {needed} distinct elements, the set has {needed - 1} (of {len(X)})"
    for g in decompose_tensor(random_invariant_function(seed, 3, shape), shape):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - compared in full below
            g(X)
        assert str(error.value) == f"decomposing into shape {shape} {message}"


def test_two_equal_elements_cannot_give_the_identity():
    X = torch.ones(2, 3)
    g1, g2 = decompose(lambda X: torch.eye(2), 2, 2)
    for g in (g1, g2):
        with pytest.raises(
            ValueError, match=r"at least 2 distinct elements, the set has 1 \(of 2\)"
        ):
            g(X)
    # Equal elements get equal rows, so any product has rank 1; by Eckart-Young it misses the
    # identity by at least 1, and the best one does no better.
    for seed in range(100):
        G1, G2 = (normal(2 * seed + k, 1, 2).expand(2, 2) for k in range(2))
        assert torch.linalg.norm(G1.T @ G2 - torch.eye(2)) >= 1 - 4 * EPS
    X[1] += 1  # any difference will do
    assert torch.equal(g1(X).T @ g2(X), torch.eye(2).double())


def test_signed_zeros_are_the_same_element():
    X = torch.tensor([[-0.0, 1.0], [0.0, 1.0]])
    g1, g2 = decompose(lambda X: X.reciprocal().isposinf().sum(dim=0)[None], 1, 2)
    assert torch.equal(g1(X).T @ g2(X), torch.tensor([[2.0, 0.0]]).double())
    g1, _ = decompose(lambda X: torch.eye(2), 2, 2)
    with pytest.raises(ValueError, match=r"the set has 1 \(of 2\)"):
        g1(X)


def test_order_one_is_the_mean_of_equal_rows():
    (g,) = decompose_tensor(lambda X: X.amax(dim=0), (3,))
    X = random_set(0, 4, 2)
    assert torch.equal(g(X), (X.amax(dim=0) / 6).expand(6, 3))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (torch.ones(3), r"the set has shape \(3,\), expected \(N, p\)"),
        (torch.ones(3, 0), r"the set has shape \(3, 0\), expected \(N, p\)"),
        (torch.tensor([[1, 2], [math.nan, 1]]), "1 of 2 elements hold NaN"),
    ],
)
def test_sets_refused(X, message):
    for g in decompose(lambda X: torch.eye(2), 2, 2):
        with pytest.raises(ValueError, match=message):
            g(X)


def test_function_of_another_shape_refused():
    _, g2 = decompose(lambda X: X.sum(dim=0), 2, 2)  # g1 holds unit vectors, it never asks f
    with pytest.raises(ValueError, match=r"f returned shape \(2,\), expected \(2, 2\)"):
        g2(torch.eye(2))


def test_unit_vectors_are_conditioned_best():
    """On as many elements as are needed: 1, against hundreds (Gaussian) and overflow (paper)."""
    shape = (4, 8, 32)
    X = random_set(0, 32, 0)
    factors = decompose_tensor(lambda X: torch.zeros(shape), shape)
    ours = khatri_rao([g(X) for g in factors[:-1]])
    assert torch.equal(ours @ ours.T, torch.eye(32).double())

    gaussian = [khatri_rao([normal(k, 32, 4), normal(k + 50, 32, 8)]) for k in range(21)]
    conditions = torch.stack([torch.linalg.cond(G) for G in gaussian])
    assert 20 < conditions.median() < 2000  # measured: 196
    assert conditions.max() > 2000  # measured: 8819

    i = torch.arange(32, dtype=torch.float64)
    assert torch.exp(i[:, None] * i).isinf().any()
    vandermonde = torch.exp(i[:6, None] * i[:6])
    # The condition is at least the ratio of the longest column to the shortest.
    assert torch.linalg.cond(vandermonde) >= math.exp(25) / math.sqrt(6) > 1e10


# --------------------------------------------------------------------------------------- the bounds


@pytest.mark.parametrize(
    "shape",
    [s for n in range(1, 6) for s in itertools.combinations_with_replacement((1, 2, 3, 5), n)],
)
def test_bounds_by_brute_force(shape):
    size = math.prod(shape)
    groups = itertools.product((False, True), repeat=len(shape))
    rows = [math.prod(itertools.compress(shape, group)) for group in groups]
    flattened = max(min(r, size // r) for r in rows)
    sufficient, necessary = cardinality_bounds(shape)
    assert necessary == max(flattened, math.ceil(size / sum(shape)))
    assert sufficient == min(math.prod(shape[:j] + shape[j + 1 :]) for j in range(len(shape)))
    assert 1 <= necessary <= sufficient
    assert cardinality_bounds(shape[::-1]) == (sufficient, necessary)


def test_bounds_of_known_shapes():
    assert cardinality_bounds((16, 64)) == CardinalityBounds(sufficient=16, necessary=16)
    assert cardinality_bounds((2,) * 7) == (64, 10)  # here counting asks for more than flattening
    assert cardinality_bounds((7,)) == (1, 1)


@pytest.mark.parametrize("shape", [(), (2, 0), (-1,)])
def test_bounds_refuse(shape):
    with pytest.raises(ValueError, match="expected one or more positive sizes"):
        cardinality_bounds(shape)


# --------------------------------------------------------------------------------- rank instability


@quick
@given(seeds, sizes, st.integers(0, 4))
def test_full_rank_holds_inside_the_radius_and_falls_on_it(seed, s, extra):
    Y = normal(seed, s + extra, s)
    instability = rank_instability(Y)
    rounding = 8 * len(Y) * EPS * torch.linalg.matrix_norm(Y, 2).item()
    assert instability.rank == s
    assert torch.equal(instability.rising(1.0), torch.zeros_like(Y))

    for k in range(20):
        Delta = normal(seed + k + 1, *Y.shape)
        Delta *= 0.999 * instability.radius / torch.linalg.norm(Delta)
        # The smallest singular value loses at most |Delta|: a thousandth of the radius is left.
        left = torch.linalg.svdvals(Y + Delta)[-1]
        assert left >= 0.001 * instability.radius - rounding

    assert torch.linalg.norm(instability.falling) == pytest.approx(instability.radius, rel=1e-12)
    assert torch.linalg.svdvals(Y + instability.falling)[-1] <= rounding
    almost = torch.linalg.svdvals(Y + 0.999 * instability.falling)[-1]
    assert abs(almost - 0.001 * instability.radius) <= rounding


@quick
@given(seeds, sizes, st.integers(0, 4), st.data(), st.sampled_from([1e-6, 1e-2, 10.0]))
def test_lower_rank_rises_within_any_distance(seed, s, extra, data, epsilon):
    rank = data.draw(st.integers(0, s - 1))
    Y = normal(seed, s + extra, rank) @ normal(seed + 1, rank, s)
    instability = rank_instability(Y)
    assert instability.rank == rank
    assert instability.radius == 0
    assert torch.equal(instability.falling, torch.zeros_like(Y))
    Delta = instability.rising(epsilon)
    assert torch.linalg.norm(Delta) < epsilon
    # Each missing direction gets epsilon / (2 sqrt(s - rank)), far above rounding.
    assert torch.linalg.matrix_rank(Y + Delta) == s
    assert rank_instability(Y + Delta).radius > 0


def test_full_rank_need_not_show_in_the_first_rows():
    """The printed proof takes the determinant of the first s rows, here zero."""
    instability = rank_instability(torch.tensor([[0.0, 0], [0, 0], [2, 0], [0, 3]]))
    assert instability.rank == 2
    assert instability.radius == pytest.approx(2)


@pytest.mark.parametrize(
    ("Y", "message"),
    [
        (torch.ones(2, 3), r"Y has shape \(2, 3\), expected 1 <= columns <= rows"),
        (torch.ones(2, 0), r"Y has shape \(2, 0\)"),
        (torch.ones(2), r"Y has shape \(2,\), expected a matrix"),
        (torch.tensor([[math.nan]]), "Y holds NaN"),
    ],
)
def test_rank_instability_refuses(Y, message):
    with pytest.raises(ValueError, match=message):
        rank_instability(Y)


def test_epsilon_must_be_positive():
    with pytest.raises(ValueError, match="epsilon is 0, expected a positive number"):
        rank_instability(torch.ones(2, 2)).rising(0)
