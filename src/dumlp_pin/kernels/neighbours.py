"""Who is near whom on a GPU: one kernel each, where PyTorch has hundreds of small ones or sorts
all distances. The same points, in the same order, as in `dumlp_pin.models.neighbours`.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from dumlp_pin.kernels._triton import why_not_on

LARGEST = 8192  # points of a set: a program holds all of them
# A distance and an index share 64 bits: sets have at most 2^24 points, float32 distances lose
# nothing, and float64 distances that differ by less than 4e-9 of themselves count as equal.
INDEX_BITS = (1 << 24) - 1


def applies(points: Tensor) -> bool:
    """Whether there are kernels for points (B, N, D)."""
    runs = why_not_on(points.device.type) is None
    return runs and 0 < points.shape[1] <= LARGEST and 1 <= points.shape[2] <= 3


def farthest_points(columns: Tensor, score: Tensor, count: int) -> Tensor:
    """Index (B, count) into columns (B, D, N): first that of the highest score (B, N)."""
    B, D, N = columns.shape
    index = torch.zeros(B, count, dtype=torch.int64, device=columns.device)
    lanes = _power_of_two(N)
    with torch.cuda.device_of(columns):
        _kernels().farthest_points[(B,)](
            columns.contiguous(), score.contiguous(), index, N, count, min(count, N),
            D=D, LANES=lanes, num_warps=_warps(lanes // 128), enable_fp_fusion=False,
        )  # fmt: skip
    return index


@torch.library.custom_op("dumlp_pin::nearest_points", mutates_args=())
def nearest_points(
    queries: Tensor, places: Tensor, absent: Tensor, order: Tensor, k: int
) -> Tensor:
    """order[...] (B, M, k) of the k places (B, N, D) nearest to each query (B, M, D)."""
    (B, M, D), N = queries.shape, places.shape[1]
    index = torch.zeros(B, M, k, dtype=torch.int64, device=queries.device)
    lanes = _power_of_two(N)
    if B * M > 0:
        with torch.cuda.device_of(queries):
            _kernels().nearest_points[(B * M,)](
                queries.contiguous(), places.contiguous(), absent.contiguous(),
                order.contiguous(), index, M, N, k, D=D, INDEX_BITS=INDEX_BITS, LANES=lanes,
                num_warps=_warps(lanes // 1024), enable_fp_fusion=False,
            )  # fmt: skip
    return index


@nearest_points.register_fake
def _(queries: Tensor, places: Tensor, absent: Tensor, order: Tensor, k: int) -> Tensor:
    return order.new_empty(*queries.shape[:2], k)


def _kernels() -> Any:
    return importlib.import_module("dumlp_pin.kernels.triton_neighbours")


def _power_of_two(number: int) -> int:
    """
    >>> _power_of_two(1000), _power_of_two(1), _power_of_two(1024)
    (1024, 16, 1024)
    """
    return max(16, 1 << (number - 1).bit_length())


def _warps(wanted: int) -> int:
    return min(32, max(1, wanted))
