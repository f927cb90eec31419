"""The lemmas and theorems behind the dot product, as constructions that run in float64.

Notation: a set is a matrix X (N, p), one element a row; D is the number of distinct rows.
The statements and their proofs are in docs/theory.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

SetFunction = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Solutions:
    """Every C (l, n) with B C = A: the shortest one plus anything in the kernel of B."""

    particular: Tensor  # (l, n), the solution of minimum norm
    kernel: Tensor  # (l, l - m), orthonormal columns that span Ker B

    def at(self, Lambda: Tensor) -> Tensor:
        """The solution with coordinates Lambda (l - m, n) in the kernel."""
        expected = (self.kernel.shape[1], self.particular.shape[1])
        if Lambda.shape != expected:
            raise ValueError(f"Lambda has shape {tuple(Lambda.shape)}, expected {expected}")
        return self.particular + self.kernel @ Lambda.to(self.kernel)


def minimum_dimension_decomposition(A: Tensor, B: Tensor) -> Solutions:
    """Solve B C = A for A (m, n) and B (m, l) of rank m <= l.

    >>> A, B = torch.tensor([[6.0, 2.0]]), torch.tensor([[1.0, 1.0]])
    >>> solutions = minimum_dimension_decomposition(A, B)
    >>> C = solutions.at(torch.tensor([[7.0, -5.0]]))
    >>> torch.dist(B.double() @ C, A) < 1e-12
    tensor(True)
    """
    A, B = _matrix("A", A), _matrix("B", B)
    m, columns = B.shape
    if A.shape[0] != m:
        raise ValueError(f"A has {A.shape[0]} rows and B has {m}, expected as many")
    if not 1 <= m <= columns:
        raise ValueError(f"B has shape {(m, columns)}, expected 1 <= rows <= columns")
    U, S, Vh = torch.linalg.svd(B)  # Vh is (l, l), its last l - m rows span the kernel
    rank = _numerical_rank(S, B)
    if rank < m:
        raise ValueError(f"B of shape {(m, columns)} has rank {rank}, expected full row rank {m}")
    return Solutions(Vh[:m].T @ (U.T @ A / S[:, None]), Vh[m:].T)


class CardinalityBounds(NamedTuple):
    """How many distinct elements a set needs so that every tensor of a shape is within reach."""

    sufficient: int
    necessary: int


def cardinality_bounds(shape: Sequence[int]) -> CardinalityBounds:
    """The two counts of Theorem 2; for a matrix they agree, and are min(s, t).

    >>> cardinality_bounds((32, 32))
    CardinalityBounds(sufficient=32, necessary=32)
    >>> cardinality_bounds((4, 4, 4))
    CardinalityBounds(sufficient=16, necessary=6)
    """
    if not shape or any(c < 1 for c in shape):
        raise ValueError(f"shape is {tuple(shape)}, expected one or more positive sizes")
    size = math.prod(shape)
    rows = {1}  # the heights of all matrices the tensor can be flattened to
    for c in shape:
        rows |= {c * r for r in rows}
    flattened = max(min(r, size // r) for r in rows)
    counted = -(-size // sum(shape))  # ceil, in exact integers
    return CardinalityBounds(size // max(shape), max(flattened, counted))


def decompose(f: SetFunction, s: int, t: int) -> tuple[SetFunction, SetFunction]:
    """Equivariant g1 and g2 with f(X) = g1(X)^T g2(X) for an invariant f: X (N, p) -> (s, t).

    Holds for every X with at least min(s, t) distinct elements; for others g1 and g2 raise
    ValueError.

    >>> def covariance(X):
    ...     return X.T @ X
    >>> g1, g2 = decompose(covariance, 2, 2)
    >>> X = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    >>> g1(X).T @ g2(X)
    tensor([[11., 16.],
            [16., 24.]], dtype=torch.float64)
    """
    g1, g2 = decompose_tensor(f, (s, t))
    return g1, g2


def decompose_tensor(f: SetFunction, shape: Sequence[int]) -> tuple[SetFunction, ...]:
    """Equivariant g_1 .. g_n with f(X)[a_1, .., a_n] = sum_i prod_j g_j(X)[i, a_j].

    f is invariant, X (N, p) -> shape. Holds for every X with at least prod(shape) / max(shape)
    distinct elements; for others the g_j raise ValueError.

    >>> factors = decompose_tensor(lambda X: X.sum().expand(2, 1, 3), (2, 1, 3))
    >>> u, v, w = (g(torch.tensor([[1.0], [2.0], [3.0]])) for g in factors)
    >>> torch.einsum("ia,ib,ic->abc", u, v, w)[1, 0]
    tensor([6., 6., 6.], dtype=torch.float64)
    """
    shape = tuple(shape)
    needed = cardinality_bounds(shape).sufficient
    # The factor of the (last) longest axis carries the values of f.
    solved = max(range(len(shape)), key=lambda j: (shape[j], j))
    others = shape[:solved] + shape[solved + 1 :]

    # f(X) flattened to (needed, shape[solved]) has one row for each index of the other axes. The
    # distinct elements, in lexicographic order, take these rows in turn. The other factors say
    # which row an element holds, as unit vectors: their products form a 0/1 matrix with orthogonal
    # columns, where the Vandermonde matrix of the paper overflows.
    def rows_held(X: Tensor) -> tuple[Tensor, Tensor]:
        distinct, place = _distinct(X)  # (D, p), (N,)
        if len(distinct) < needed:
            raise ValueError(
                f"decomposing into shape {shape} needs at least {needed} distinct elements, "
                f"the set has {len(distinct)} (of {len(X)})"
            )
        return place % needed, distinct[place.sort().values]

    def unit_vectors(axis: int) -> SetFunction:
        def g(X: Tensor) -> Tensor:  # (N, others[axis])
            row, _ = rows_held(X)
            return F.one_hot(torch.unravel_index(row, others)[axis], others[axis]).double()

        return g

    def values(X: Tensor) -> Tensor:  # (N, shape[solved])
        # f sees the elements sorted, so that its rounding cannot depend on their order.
        row, X_sorted = rows_held(X)
        Y = f(X_sorted)
        if Y.shape != shape:
            raise ValueError(f"f returned shape {tuple(Y.shape)}, expected {shape}")
        Y = Y.double().movedim(solved, -1).reshape(needed, shape[solved])
        holders = torch.bincount(row, minlength=needed)  # equal elements hold the same row
        return (Y / holders[:, None])[row]

    factors = [unit_vectors(axis) for axis in range(len(others))]
    return (*factors[:solved], values, *factors[solved:])


@dataclass(frozen=True)
class RankInstability:
    """How far a matrix Y (N, s) stands from those of rank below s, and the ways across."""

    rank: int
    radius: float  # perturbations of smaller Frobenius norm cannot take full rank away
    falling: Tensor  # (N, s), of norm radius: Y + falling has rank below s
    missing: Tensor  # (N, s), of norm 1 or 0: Y + x * missing has rank s for every x > 0

    def rising(self, epsilon: float) -> Tensor:
        """A perturbation of Frobenius norm below epsilon that gives Y full rank.

        Mathematically for every epsilon; one below the rounding of Y is lost when added to it.
        """
        if not epsilon > 0:
            raise ValueError(f"epsilon is {epsilon}, expected a positive number")
        return epsilon / 2 * self.missing


def rank_instability(Y: Tensor) -> RankInstability:
    """Measure Lemma 3: full column rank survives small perturbations, a lower rank does not.

    >>> instability = rank_instability(torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 0.5]]))
    >>> instability.rank, instability.radius
    (2, 0.5)
    >>> rank_instability(torch.ones(3, 2)).rank
    1
    """
    Y = _matrix("Y", Y)
    N, s = Y.shape
    if not 1 <= s <= N:
        raise ValueError(f"Y has shape {(N, s)}, expected 1 <= columns <= rows")
    U, S, Vh = torch.linalg.svd(Y, full_matrices=False)
    rank = _numerical_rank(S, Y)
    missing = U[:, rank:] @ Vh[rank:] / math.sqrt(max(s - rank, 1))
    if rank < s:
        return RankInstability(rank, 0.0, torch.zeros_like(Y), missing)
    return RankInstability(rank, S[-1].item(), -S[-1] * U[:, -1:] @ Vh[-1:], missing)


def _distinct(X: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows of X (N, p) in lexicographic order, and the place of each row there."""
    if X.ndim != 2 or X.shape[1] == 0:
        raise ValueError(f"the set has shape {tuple(X.shape)}, expected (N, p) with p >= 1")
    undefined = int(X.isnan().any(dim=1).sum())
    if undefined:
        raise ValueError(f"{undefined} of {len(X)} elements hold NaN, which has no order")
    X = X.double() + 0.0  # -0.0 and 0.0 are the same number and must reach f as one
    distinct, place = torch.unique(X, dim=0, return_inverse=True)
    return distinct, place


def _matrix(name: str, M: Tensor) -> Tensor:
    if M.ndim != 2:
        raise ValueError(f"{name} has shape {tuple(M.shape)}, expected a matrix")
    if not M.isfinite().all():
        raise ValueError(f"{name} holds NaN or infinite entries")
    return M.double()


def _numerical_rank(S: Tensor, M: Tensor) -> int:
    """Count singular values S of M above its rounding, as torch.linalg.matrix_rank does."""
    rounding = S[0] * max(M.shape) * torch.finfo(S.dtype).eps
    return int(S.gt(rounding).sum())
