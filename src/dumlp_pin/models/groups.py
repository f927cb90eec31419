"""Groups of points, each a centre and its neighbours: what is common to networks that look at
neighbourhoods. Sets are padded as in `neighbours`.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from dumlp_pin.blocks import MLP
from dumlp_pin.functional import set_max
from dumlp_pin.models.neighbours import farthest_points, nearest


def sample(points: Tensor, count: int, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """`farthest_points`, with no mask where every set is known to have `count` points.

    Batch norm is faster without a mask.
    """
    index, kept = farthest_points(points, count, mask)
    return index, None if mask is None and points.shape[1] >= count else kept


def surroundings(
    centres: Tensor, chosen: Tensor | None, points: Tensor, mask: Tensor | None, k: int
) -> tuple[Tensor, Tensor | None]:
    """The points nearest to each centre: index (B, M, k), and whether each is kept, as `nearest`.

    Nothing is kept for a centre that is not `chosen`. There is no mask where all are known to be.
    """
    index, _, kept = nearest(centres, points, k, mask)
    if chosen is not None:
        return index, kept & chosen[:, :, None]
    return index, None if mask is None and points.shape[1] >= k else kept


def pool_groups(mlp: MLP, members: Tensor, kept: Tensor | None) -> Tensor:
    """An MLP and a ReLU on the members (B, M, k, F) of groups, the largest of each: (B, M, F').

    A group of which nothing is kept, by a mask (B, M, k), has zeros.

    >>> import torch
    >>> pool_groups(MLP((6, 16)), torch.rand(2, 10, 4, 6), kept=None).shape
    torch.Size([2, 10, 16])
    """
    # Every group is a set of its own.
    sets, mask = members.flatten(0, 1), None if kept is None else kept.flatten(0, 1)
    # The ReLU commutes with the maximum, after which there is less of it to do.
    return F.relu(set_max(mlp(sets, mask), mask)).unflatten(0, members.shape[:2])
