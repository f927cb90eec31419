"""The product of the two factors of an aggregation block in training, as Triton kernels.

The factors come as z, what the branches' last layers multiply, before their batch norms.
Forward, each element is read once: a softmax takes its numbers relative to the largest so far, and
its mass divides the product at the end. Backward, each element is read once again. A softmax needs
the sum over the set of its weights times their gradients. This is the sum of a row, or column, of
the product times its gradient: no look at another element.

A program has one part of the elements of one set.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dumlp_pin.kernels.triton_layers import LOWEST, expm1
from dumlp_pin.kernels.triton_training_forward import (
    MEAN,
    RSTD,
    SCALE,
    SHIFT,
    narrowed,
    operand,
    product,
    store_tile,
    tile,
)

# What is kept of the elements of a set, or of a part of it, is a matrix (C + 4, C): the product of
# the weights, not yet divided by their masses, and below it, of each factor, these two rows.
ROWS_BELOW = tl.constexpr(4)
PEAK, MASS = map(tl.constexpr, range(2))


@triton.jit
def multiply_sets(
    z,  # (2, T, C)
    statistics,  # (4, 2, C)
    affine,  # (2, 2, C)
    starts,  # (B + 1,), or None if every set has N elements
    sums,  # (B, parts, C + 4, C)
    y,  # (B, C, C), written if WHOLE
    T,
    N,
    C: tl.constexpr,
    LEFT: tl.constexpr,  # the activation of each factor
    RIGHT: tl.constexpr,
    WHOLE: tl.constexpr,  # sets have one part
    OPERAND: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    begin, first, last = rows_of_part(starts, N, BLOCK_R)
    r, c = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    z += begin * C
    further = tl.cast(T, tl.int64) * C  # from a left number to the right one
    left_mean, left_scale, left_shift = norm_of(statistics, affine, 0, c, C)
    right_mean, right_scale, right_shift = norm_of(statistics, affine, 1, c, C)
    left_peak = tl.full((BLOCK_C,), LOWEST, tl.float32)
    right_peak = tl.full((BLOCK_C,), LOWEST, tl.float32)
    # Each place of the tile sums up the weights it has seen; rows are summed up at the end.
    left_mass = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    right_mass = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    total = tl.zeros((BLOCK_C, BLOCK_C), tl.float32)
    for start in range(first, last, BLOCK_R):
        real = (start + r < last)[:, None]
        left = (tile(z, start, r, c, last, C) - left_mean) * left_scale + left_shift
        right = tile(z + further, start, r, c, last, C)
        right = (right - right_mean) * right_scale + right_shift
        if LEFT == "softmax":
            left_peak, ratio = raised(left_peak, left, real)
            left_mass *= ratio[None, :]
            total *= ratio[:, None]
        if RIGHT == "softmax":
            right_peak, ratio = raised(right_peak, right, real)
            right_mass *= ratio[None, :]
            total *= ratio[None, :]
        left = operand(weight_of(left, real, left_peak, LEFT), OPERAND)
        right = operand(weight_of(right, real, right_peak, RIGHT), OPERAND)
        # Of what is multiplied, not of what it was before rounding: weights then sum up to 1.
        if LEFT == "softmax":
            left_mass += left.to(tl.float32)
        if RIGHT == "softmax":
            right_mass += right.to(tl.float32)
        total = product(tl.trans(left), right, total, OPERAND)
    store_sums(
        sums + set_or_part() * (C + ROWS_BELOW) * C,
        y,
        total,
        left_peak,
        tl.sum(left_mass, 0),
        right_peak,
        tl.sum(right_mass, 0),
        C,
        LEFT,
        RIGHT,
        WHOLE,
        BLOCK_C,
    )


@triton.jit
def merge_parts(
    parts,  # (B, P, C + 4, C)
    sums,  # (B, 1, C + 4, C)
    y,  # (B, C, C)
    P,
    C: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Program b merges the parts of set b, in their order."""
    c = tl.arange(0, BLOCK_C)
    left_peak = tl.full((BLOCK_C,), LOWEST, tl.float32)
    right_peak = tl.full((BLOCK_C,), LOWEST, tl.float32)
    left_mass = tl.zeros((BLOCK_C,), tl.float32)
    right_mass = tl.zeros((BLOCK_C,), tl.float32)
    total = tl.zeros((BLOCK_C, BLOCK_C), tl.float32)
    parts += tl.program_id(0).to(tl.int64) * P * (C + ROWS_BELOW) * C
    for part in range(P):
        at = parts + part * (C + ROWS_BELOW) * C
        theirs = tile(at, 0, c, c, C, C)
        if LEFT == "softmax":
            peak, mass = below(at, PEAK, c, C), below(at, MASS, c, C)
            new = tl.maximum(left_peak, peak)
            ours, ratio = tl.exp(left_peak - new), tl.exp(peak - new)
            left_peak, left_mass = new, left_mass * ours + mass * ratio
            total, theirs = total * ours[:, None], theirs * ratio[:, None]
        if RIGHT == "softmax":
            peak, mass = below(at, 2 + PEAK, c, C), below(at, 2 + MASS, c, C)
            new = tl.maximum(right_peak, peak)
            ours, ratio = tl.exp(right_peak - new), tl.exp(peak - new)
            right_peak, right_mass = new, right_mass * ours + mass * ratio
            total, theirs = total * ours[None, :], theirs * ratio[None, :]
        total += theirs
    sums += set_or_part() * (C + ROWS_BELOW) * C
    store_sums(
        sums, y, total, left_peak, left_mass, right_peak, right_mass, C, LEFT, RIGHT, True, BLOCK_C
    )


@triton.jit
def multiply_sets_backward(
    z,  # (2, T, C)
    statistics,  # (4, 2, C)
    affine,  # (2, 2, C)
    starts,  # (B + 1,), or None if every set has N elements
    sums,  # (B, C + 4, C)
    y_gradient,  # (B, C, C)
    gradients,  # (2, T, C), behind the norm
    partial,  # (B, parts, 2, 2, C): gradients of affine
    T,
    N,
    C: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    OPERAND: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Program (b, part, factor) finds the gradient of one factor."""
    begin, first, last = rows_of_part(starts, N, BLOCK_R)
    b = tl.program_id(0).to(tl.int64)
    sums += b * (C + ROWS_BELOW) * C
    y_gradient += b * C * C
    lefts = z + begin * C
    further = tl.cast(T, tl.int64) * C  # from a left number to the right one
    rights = lefts + further
    into = gradients + begin * C
    partial += set_or_part() * 4 * C
    if tl.program_id(2) == 0:
        factor_backward(
            lefts,
            rights,
            statistics,
            affine,
            sums,
            y_gradient,
            into,
            partial,
            first,
            last,
            C,
            0,
            LEFT,
            RIGHT,
            OPERAND,
            BLOCK_R,
            BLOCK_C,
        )
    else:
        factor_backward(
            rights,
            lefts,
            statistics,
            affine,
            sums,
            y_gradient,
            into + further,
            partial,
            first,
            last,
            C,
            1,
            RIGHT,
            LEFT,
            OPERAND,
            BLOCK_R,
            BLOCK_C,
        )


@triton.jit
def factor_backward(
    ours,
    theirs,
    statistics,
    affine,
    sums,
    y_gradient,
    gradient,
    partial,
    first,
    last,
    C: tl.constexpr,
    FACTOR: tl.constexpr,  # 0 is the left one
    OURS: tl.constexpr,  # the activations
    THEIRS: tl.constexpr,
    OPERAND: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    r, c = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_C)
    mean, scale, shift = norm_of(statistics, affine, FACTOR, c, C)
    their_mean, their_scale, their_shift = norm_of(statistics, affine, 1 - FACTOR, c, C)
    peak, share = peak_and_share(sums, 2 * FACTOR, c, C, OURS)
    their_peak, their_share = peak_and_share(sums, 2 - 2 * FACTOR, c, C, THEIRS)
    # Their columns as rows, ours as columns: their weights times this are our weights' gradient.
    to_ours = matrix_of(y_gradient, c, C, FACTOR) * their_share[:, None]
    to_ours = operand(to_ours, OPERAND)
    level = tl.sum(matrix_of(sums, c, C, FACTOR) * to_ours.to(tl.float32), 0) * share
    # Each place of the tile sums up what it has seen; rows are summed up at the end.
    of_shift = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    of_scale = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for start in range(first, last, BLOCK_R):
        real = (start + r < last)[:, None]
        off = tile(ours, start, r, c, last, C) - mean
        values = off * scale + shift
        weight = weight_of(values, real, peak, OURS)
        their_values = (tile(theirs, start, r, c, last, C) - their_mean) * their_scale
        their_weight = weight_of(their_values + their_shift, real, their_peak, THEIRS)
        slope = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
        slope = product(operand(their_weight, OPERAND), to_ours, slope, OPERAND)
        if OURS == "softmax":
            slope = weight * share[None, :] * (slope - level[None, :])
        elif OURS == "relu":
            slope = tl.where(values > 0, slope, 0.0)
        elif OURS == "elu":
            slope = tl.where(values > 0, slope, slope * tl.exp(tl.minimum(values, 0.0)))
        stored = narrowed(slope, gradient.dtype.element_ty)
        store_tile(gradient, start, r, c, last, stored, C)
        of_shift += stored.to(tl.float32)
        of_scale += stored.to(tl.float32) * off
    of_scale = tl.sum(of_scale, 0) * number_of(statistics, RSTD, FACTOR, c, C)
    tl.store(partial + (2 * SCALE + FACTOR) * C + c, of_scale, mask=c < C)
    tl.store(partial + (2 * SHIFT + FACTOR) * C + c, tl.sum(of_shift, 0), mask=c < C)


@triton.jit
def matrix_of(matrix, c, C: tl.constexpr, FACTOR: tl.constexpr):
    """(C, C), columns of this factor as its columns."""
    rows, columns = c[:, None], c[None, :]
    at = rows + columns * C if FACTOR == 0 else rows * C + columns
    return tl.load(matrix + at, mask=(rows < C) & (columns < C), other=0.0).to(tl.float32)


@triton.jit
def number_of(matrix, row, factor, c, C: tl.constexpr):
    """A factor's columns of a row of (..., 2, C)."""
    return tl.load(matrix + (2 * row + factor) * C + c, mask=c < C, other=0.0).to(tl.float32)


@triton.jit
def norm_of(statistics, affine, factor, c, C: tl.constexpr):
    """What a factor's norm takes from a row, multiplies it by, and adds to it."""
    scale = number_of(statistics, RSTD, factor, c, C) * number_of(affine, SCALE, factor, c, C)
    mean = number_of(statistics, MEAN, factor, c, C)
    return mean[None, :], scale[None, :], number_of(affine, SHIFT, factor, c, C)[None, :]


@triton.jit
def rows_of_part(starts, N, BLOCK_R: tl.constexpr):
    """Where this program's set begins among all rows, and which rows of it are the program's."""
    b, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    if starts is None:
        begin = b * N
        size = N
    else:
        begin = tl.load(starts + b)
        size = (tl.load(starts + b + 1) - begin).to(tl.int32)
    rows = tl.cdiv(tl.cdiv(size, BLOCK_R), parts) * BLOCK_R
    first = part * rows
    return begin, first, tl.minimum(first + rows, size)


@triton.jit
def set_or_part():
    """The number of this program."""
    return tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)


@triton.jit
def raised(peak, values, real):
    """The peak (C,) with these values (rows, C), and what sums so far are worth under it."""
    new = tl.maximum(peak, tl.max(tl.where(real, values, LOWEST), 0))
    return new, tl.exp(peak - new)


@triton.jit
def weight_of(values, real, peak, ACTIVATION: tl.constexpr):
    """What is multiplied: the activation, of a softmax without its mass; 0 where no element is."""
    if ACTIVATION == "softmax":
        weight = tl.exp(tl.where(real, values, float("-inf")) - peak[None, :])
    else:
        weight = tl.where(real, values, 0.0)
        if ACTIVATION == "relu":
            weight = tl.where(weight < 0, 0.0, weight)  # unlike maximum this hands a NaN on
        elif ACTIVATION == "elu":
            weight = tl.where(weight < 0, expm1(tl.minimum(weight, 0.0)), weight)
    return weight


@triton.jit
def below(sums, row, c, C: tl.constexpr):
    return tl.load(sums + (C + row) * C + c, mask=c < C, other=0.0)


@triton.jit
def share_of(mass):
    """What one unit of weight is of the whole; an empty set has none."""
    return 1 / tl.where(mass > 0, mass, 1.0)


@triton.jit
def peak_and_share(sums, row, c, C: tl.constexpr, ACTIVATION: tl.constexpr):
    if ACTIVATION == "softmax":
        peak, share = below(sums, row + PEAK, c, C), share_of(below(sums, row + MASS, c, C))
    else:
        peak, share = c * 0.0, c * 0.0 + 1
    return peak, share


@triton.jit
def store_sums(
    sums,
    y,
    total,
    left_peak,
    left_mass,
    right_peak,
    right_mass,
    C: tl.constexpr,
    LEFT: tl.constexpr,
    RIGHT: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """What is kept of a part or, if WHOLE, of a set, and then y too."""
    c = tl.arange(0, BLOCK_C)
    store_tile(sums, 0, c, c, C, total, C)
    if LEFT == "softmax":
        tl.store(sums + (C + PEAK) * C + c, left_peak, mask=c < C)
        tl.store(sums + (C + MASS) * C + c, left_mass, mask=c < C)
    if RIGHT == "softmax":
        tl.store(sums + (C + 2 + PEAK) * C + c, right_peak, mask=c < C)
        tl.store(sums + (C + 2 + MASS) * C + c, right_mass, mask=c < C)
    if WHOLE:
        if LEFT == "softmax":
            total *= share_of(left_mass)[:, None]
        if RIGHT == "softmax":
            total *= share_of(right_mass)[None, :]
        y += tl.program_id(0).to(tl.int64) * C * C
        store_tile(y, 0, c, c, C, narrowed(total, y.dtype.element_ty), C)
