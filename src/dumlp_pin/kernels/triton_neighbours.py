"""Triton kernels for who is near whom: a program samples a set, or looks around one point.

`dumlp_pin.models.neighbours` says what they compute. Points come in the order of their coordinates:
of points equally near, the first is to be taken.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def farthest_points(columns, score, index, N, count, steps, D: tl.constexpr, LANES: tl.constexpr):
    """From columns (B, D, N) and first scores (B, N), -1 where no point is: index (B, count)."""
    lanes = tl.arange(0, LANES)
    real = lanes < N
    set_number = tl.program_id(0).to(tl.int64)
    columns += set_number * D * N
    x = tl.load(columns + lanes, mask=real, other=0)
    y = tl.load(columns + N + lanes, mask=real & (D > 1), other=0)
    z = tl.load(columns + 2 * N + lanes, mask=real & (D > 2), other=0)
    score = tl.load(score + set_number * N + lanes, mask=real, other=-1)
    distance = tl.where(score < 0, -1.0, float("inf")).to(score.dtype)
    for step in range(steps):
        chosen = tl.argmax(score, axis=0)  # the first of equal ones
        tl.store(index + set_number * count + step, chosen.to(tl.int64))
        dx = x - tl.load(columns + chosen)
        dy = y - tl.load(columns + N + chosen, mask=D > 1, other=0)
        dz = z - tl.load(columns + 2 * N + chosen, mask=D > 2, other=0)
        distance = tl.minimum(distance, dx * dx + dy * dy + dz * dz)
        # Below the distance of a twin at the same place, which is still to be chosen.
        distance = tl.where(lanes == chosen, -1.0, distance)
        score = distance


@triton.jit
def nearest_points(
    queries, places, absent, order, index, M, N, K,
    D: tl.constexpr, INDEX_BITS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """From queries (B, M, D), places (B, N, D) and where no point is: order[...] (B, M, K)."""
    lanes = tl.arange(0, LANES)
    real = lanes < N
    query = tl.program_id(0).to(tl.int64)
    set_number = query // M
    places += set_number * N * D
    square = tl.zeros((LANES,), places.dtype.element_ty)
    for d in tl.static_range(D):
        place = tl.load(places + lanes * D + d, mask=real, other=0)
        offset = tl.load(queries + query * D + d) - place
        square += offset * offset
    gone = tl.load(absent + set_number * N + lanes, mask=real, other=1) != 0
    square = tl.where(gone, float("inf"), square)
    # Bits of positive numbers are in the order of the numbers; the lowest are those of the lane.
    keys = (square.to(tl.float64).to(tl.int64, bitcast=True) & ~INDEX_BITS) | lanes
    for k in range(K):
        key = tl.min(keys, axis=0)
        lane = key & INDEX_BITS
        tl.store(index + query * K + k, tl.load(order + set_number * N + lane, mask=lane < N))
        keys = tl.where(keys == key, 0x7FFFFFFFFFFFFFFF, keys)
