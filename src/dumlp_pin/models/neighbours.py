"""Who is near whom in a set of points: what networks that look at neighbourhoods are made of.

Everything is over padded sets: points (B, N, D), and a mask (B, N) that is True where a point is
real; what stands in the padding never matters. Distances are compared in float32 at least. Where
two are equal, the point that comes first in the order of its coordinates wins, not the one stored
first, so that an answer depends on the set alone even on a lattice, where most distances are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dumlp_pin._layout import Sets, open_sets, without_padding
from dumlp_pin.kernels import neighbours as kernels
from dumlp_pin.sets import SetBatch


def as_padded(
    x: Sets, mask: Tensor | None = None, features: int | None = None
) -> tuple[Tensor, Tensor | None, Callable[[Tensor], Sets]]:
    """Sets in any form as values (B, N, F), zero in the padding, and their mask.

    The third thing returned takes what was made for the elements, (B, N, ...), back to the form
    of x. `features` is the width that x has to have.

    >>> sets = SetBatch.from_list([torch.ones(2, 3), torch.ones(5, 3)])
    >>> values, mask, back = as_padded(sets)
    >>> values.shape
    torch.Size([2, 5, 3])
    >>> back(values.repeat(1, 1, 2))
    SetBatch(2 sets, 7 rows, element shape (6,), torch.float32, cpu)
    """
    values, _ = open_sets(x, mask)
    if features is not None and values.shape[-1] != features:
        raise ValueError(
            f"expected {features} features, got {values.shape[-1]} "
            f"in an input of shape {tuple(values.shape)}"
        )
    if not isinstance(x, SetBatch):
        return without_padding(x, mask), mask, lambda made: without_padding(made, mask)
    # A graph may not look at the sizes: no set is larger than all rows together.
    rows = x.rows.shape[0]
    padded, mask = x.to_padded(rows if torch.compiler.is_compiling() else None)
    largest = padded.shape[1]
    slot = torch.arange(rows, device=x.device) + (
        torch.arange(x.num_sets, device=x.device) * largest - x.offsets[:-1]
    ).index_select(0, x.set_index)
    return padded, mask, lambda made: x.with_rows(made.flatten(0, 1).index_select(0, slot))


def gather(values: Tensor, index: Tensor) -> Tensor:
    """From values (B, N, F) those at index (B, ...) of the same set: (B, ..., F).

    >>> gather(torch.tensor([[[5.0], [6.0], [7.0]]]), torch.tensor([[2, 0]]))[0, :, 0]
    tensor([7., 5.])
    """
    width = values.shape[-1]
    if values.shape[1] == 0:  # every index is of a point that is not there
        return values.new_zeros(*index.shape, width)
    taken = values.gather(1, index.flatten(1)[:, :, None].expand(-1, -1, width))
    return taken.view(*index.shape, width)


def farthest_points(
    points: Tensor, count: int, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Farthest point sampling: index (B, count) of the sample, and whether each is kept.

    The first is the point farthest from the mean of the set, each next one the farthest from
    those already chosen; a random or the first stored point to begin with would make the sample
    depend on more than the set. A set with fewer than `count` points gives all of them and is not
    kept for the rest, so a sample is a masked set again.

    >>> line = torch.tensor([[[0.0], [1.0], [2.0], [9.0]]])
    >>> index, kept = farthest_points(line, 3)
    >>> index  # from 9 the farthest is 0, from both it is 2
    tensor([[3, 0, 2]])
    """
    points = without_padding(points.detach(), mask)
    if mask is None:
        mask = torch.ones_like(points[:, :, 0], dtype=torch.bool)
    kept = torch.arange(count, device=points.device) < mask.sum(1, keepdim=True)
    return torch.where(kept, _farthest_points(points, mask, count), 0), kept


# One operator in a graph: its many small steps would be traced one by one otherwise.
@torch.library.custom_op("dumlp_pin::farthest_points", mutates_args=())
def _farthest_points(points: Tensor, mask: Tensor, count: int) -> Tensor:
    order = _coordinate_order(points, mask)
    # The sum of float32 coordinates is as good as exact in float64: the mean, and with it the
    # first point, does not depend on the order of summation.
    columns = gather(points, order).double().mT  # (B, D, N)
    absent = ~mask.gather(1, order)
    mean = columns.sum(2, keepdim=True) / mask.sum(1).clamp(min=1)[:, None, None]

    score = (columns - mean).square().sum(1).masked_fill(absent, -1)
    if kernels.applies(points):
        return order.gather(1, kernels.farthest_points(columns, score, count))
    index = torch.zeros(len(points), count, dtype=torch.int64, device=points.device)
    distance = torch.full_like(score, torch.inf).masked_fill(absent, -1)
    for step in range(min(count, points.shape[1])):
        chosen = score.argmax(1, keepdim=True)  # the first of equal ones
        index[:, step : step + 1] = chosen
        position = columns.gather(2, chosen[:, None].expand(-1, columns.shape[1], -1))
        distance = torch.minimum(distance, (columns - position).square().sum(1))
        # Below the distance of a twin at the same place, which is still to be chosen.
        score = distance.scatter_(1, chosen, -1)
    return order.gather(1, index) if points.shape[1] else index


@_farthest_points.register_fake
def _(points: Tensor, mask: Tensor, count: int) -> Tensor:
    return points.new_empty(points.shape[0], count, dtype=torch.int64)


def nearest(
    queries: Tensor, points: Tensor, k: int, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The k points nearest to each query (B, M, D), the nearest first.

    Their index (B, M, k), their squared distances, which have gradients, and whether each is kept:
    a set of fewer points keeps those it has, and the distance of the rest is infinite.

    >>> line = torch.tensor([[[0.0], [1.0], [5.0]]])
    >>> index, square, kept = nearest(torch.tensor([[[4.0]]]), line, k=2)
    >>> index, square
    (tensor([[[2, 1]]]), tensor([[[1., 9.]]]))
    """
    points = without_padding(points, mask)
    if mask is None:
        mask = torch.ones_like(points[:, :, 0], dtype=torch.bool)
    kept = (torch.arange(k, device=points.device) < mask.sum(1)[:, None, None]).expand(
        -1, queries.shape[1], -1
    )
    with torch.no_grad():
        index = torch.where(kept, _nearest_index(queries, points, mask, k), 0)
    # The distances of the chosen again: a gradient through all M N of them would have to keep all.
    offsets = _widened(gather(points, index)) - _widened(queries)[:, :, None]
    return index, offsets.square().sum(-1).masked_fill(~kept, torch.inf), kept


def _nearest_index(queries: Tensor, points: Tensor, mask: Tensor, k: int) -> Tensor:
    by_kernel = kernels.applies(points)
    if not by_kernel:
        # With k points that are not there, every set has k.
        points, mask = F.pad(points, (0, 0, 0, k)), F.pad(mask, (0, k))
    order = _coordinate_order(points, mask)
    places, absent = _widened(gather(points, order)), ~mask.gather(1, order)
    if by_kernel:
        return kernels.nearest_points(_widened(queries), places, absent, order, k)
    # Differences, since |a|^2 - 2 ab + |b|^2 cancels; one coordinate at a time, since (B, M, N, D)
    # need not be in memory at once.
    square = places.new_zeros(())
    for of_query, of_point in zip(_widened(queries).unbind(2), places.unbind(2), strict=True):
        square = square + (of_query[:, :, None] - of_point[:, None]).square()
    square = square.masked_fill(absent[:, None], torch.inf)
    # Bits of positive numbers are in the order of the numbers. With the place in the order of
    # coordinates as the lowest bits no two are equal, and topk has no choice.
    keys = square.double().view(torch.int64) & ~kernels.INDEX_BITS
    keys = keys | torch.arange(order.shape[1], device=order.device)
    chosen = keys.topk(k, largest=False).values & kernels.INDEX_BITS
    return order.gather(1, chosen.flatten(1)).view_as(chosen)


def within(
    queries: Tensor, points: Tensor, radius: float, k: int, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The ball query: index (B, M, k) of points within the radius, the nearest first, and whether
    each is kept. Places of the index that are not kept hold the nearest point again.

    Where more than k are within, the k nearest are taken. PointNet++ takes the k stored first,
    which makes the answer depend on the order of the points.

    >>> line = torch.tensor([[[0.0], [1.0], [5.0]]])
    >>> within(torch.tensor([[[1.5]]]), line, radius=2, k=3)
    (tensor([[[1, 0, 1]]]), tensor([[[ True,  True, False]]]))
    """
    ((index, kept),) = within_each(queries, points, [(radius, k)], mask)
    return index, kept


def within_each(
    queries: Tensor,
    points: Tensor,
    balls: Sequence[tuple[float, int]],
    mask: Tensor | None = None,
) -> list[tuple[Tensor, Tensor]]:
    """`within` for each of several (radius, k), at the price of the largest k.

    >>> line = torch.tensor([[[0.0], [1.0], [5.0]]])
    >>> small, large = within_each(torch.tensor([[[1.5]]]), line, [(1, 2), (4, 3)])
    >>> small
    (tensor([[[1, 1]]]), tensor([[[ True, False]]]))
    >>> large
    (tensor([[[1, 0, 2]]]), tensor([[[True, True, True]]]))
    """
    with torch.no_grad():
        index, square, kept = nearest(queries, points, max(k for _, k in balls), mask)
    found = []
    for radius, k in balls:
        inside = (kept & (square <= radius**2))[:, :, :k]
        # Not the first stored point for all that is not kept: a GPU would add their gradients,
        # zeros, to that one point, one after another.
        found.append((torch.where(inside, index[:, :, :k], index[:, :, :1]), inside))
    return found


def interpolate(
    queries: Tensor, points: Tensor, values: Tensor, k: int = 3, mask: Tensor | None = None
) -> Tensor:
    """(B, M, F): at each query the mean of the values (B, N, F) of its k nearest points, weighed
    by the inverse square of the distance; zeros where the set is empty.

    >>> line, values = torch.tensor([[[0.0], [3.0]]]), torch.tensor([[[10.0], [20.0]]])
    >>> interpolate(torch.tensor([[[1.0], [3.0]]]), line, values)  # weights 1 and 1/4
    tensor([[[12.],
             [20.]]])
    """
    index, square, kept = nearest(queries, points, k, mask)
    # Every weight times the smallest square, which the sum divides out: none exceeds 1, and a
    # query on a point has that point's value, with no small number added anywhere.
    smallest, positive = square[:, :, :1], square > 0
    weight = torch.where(positive & kept, smallest / torch.where(positive & kept, square, 1), 0)
    weight = torch.where(kept & ~positive, 1, weight)
    weight = weight / weight.sum(-1, keepdim=True).clamp(min=1)
    taken = _widened(gather(without_padding(values, mask), index))
    return (weight[..., None] * taken).sum(2).to(values.dtype)


def _coordinate_order(points: Tensor, mask: Tensor) -> Tensor:
    """(B, N): the index of the points by first coordinate, then second, ...; padding comes last."""
    columns = [points[:, :, d] for d in range(points.shape[2])]
    columns[0] = columns[0].masked_fill(~mask, torch.inf)
    order = torch.arange(points.shape[1], device=points.device).expand(points.shape[:2])
    for column in reversed(columns):
        order = order.gather(1, column.gather(1, order).argsort(dim=1, stable=True))
    return order


def _widened(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))
