"""Normals of points that have none."""

from __future__ import annotations

import torch
from torch import Tensor

NEIGHBOURS = 16
ROWS = 1024  # points whose distances to all others are in memory at once


def estimate_normals(points: Tensor, cloud: Tensor, neighbours: int = NEIGHBOURS) -> Tensor:
    """(N, 3) for points (N, 3): where their neighbours among the cloud (M, 3) spread the least.

    Which of the two directions is outward, a cloud does not tell: here it is the one that leads
    away from the middle of the cloud, which is right for convex shapes.

    >>> square = torch.cat((torch.rand(100, 2), torch.ones(100, 1)), 1)
    >>> estimate_normals(square[:1], square).abs()
    tensor([[0., 0., 1.]])
    """
    normals = []
    for some in points.split(ROWS):
        nearest = torch.cdist(some, cloud).topk(min(neighbours, len(cloud)), largest=False).indices
        spread = cloud[nearest] - cloud[nearest].mean(1, keepdim=True)
        # Eigenvectors are columns, that of the smallest eigenvalue the first.
        normals.append(torch.linalg.eigh(spread.mT @ spread).eigenvectors[..., 0])
    normal = torch.cat(normals)
    inward = (normal * (points - cloud.mean(0))).sum(1, keepdim=True) < 0
    return torch.where(inward, -normal, normal)
