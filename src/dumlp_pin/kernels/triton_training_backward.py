"""The way back through `triton_training_forward`: z was kept, the rest is computed again.

The gradient that goes from layer to layer is the one at a batch norm's output, where the ReLU
after it has passed it; if a ReLU ends the last layer, whoever reads the gradient there passes it.
What the norm makes of it needs two sums over all rows, of the gradient and of its product with the
normalised z. They are the gradients of the norm's shift and scale, too; the kernel that writes a
gradient sums it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dumlp_pin.kernels.triton_training_forward import (
    MEAN,
    RSTD,
    SCALE,
    SHIFT,
    columns,
    narrowed,
    operand,
    product,
    store_tile,
    tile,
    weight_tile,
)


@triton.jit
def passed(gradient, off, factor, shift, RELU: tl.constexpr):
    """What a ReLU lets pass, if there is one, behind a norm of z, which is `off` from its mean."""
    if RELU:
        gradient = tl.where(off * factor + shift > 0, gradient, 0.0)
    return gradient


@triton.jit
def output_sums(
    gradient,  # (groups, rows, N)
    z,  # (groups, rows, N)
    statistics,  # (4, groups, N)
    affine,  # (2, groups, N)
    partial,  # (programs, 2 if NORMED else 1, groups, N): as `sums` below
    rows,
    rows_a_program,
    N: tl.constexpr,
    NORMED: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The sums of the gradient at the output: of the last norm's scale and shift, or of a bias."""
    program, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first = program * rows_a_program
    r, n = tl.arange(0, BLOCK_R), tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    gradient += group * rows * N
    z += group * rows * N
    of_shift = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    of_scale = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    if NORMED:
        mean = columns(statistics, MEAN, n, N)[None, :]
        factor = (columns(statistics, RSTD, n, N) * columns(affine, SCALE, n, N))[None, :]
        shift = columns(affine, SHIFT, n, N)[None, :]
    for start in range(first, tl.minimum(first + rows_a_program, rows), BLOCK_R):
        values = tile(gradient, start, r, n, rows, N)
        if NORMED:
            off = tile(z, start, r, n, rows, N) - mean
            values = passed(values, off, factor, shift, RELU)
            of_scale += values * off
        of_shift += values
    width = tl.num_programs(1) * N
    if NORMED:
        at = partial + program * 2 * width + group * N + n
        tl.store(at, tl.sum(of_scale, 0) * columns(statistics, RSTD, n, N), mask=n < N)
        tl.store(at + width, tl.sum(of_shift, 0), mask=n < N)
    else:
        at = partial + program * width + group * N + n
        tl.store(at, tl.sum(of_shift, 0), mask=n < N)


@triton.jit
def set_sums(
    gradient,  # (rows, N), behind this layer's norm
    z,  # (rows, N)
    statistics,  # (4, N)
    affine,  # (2, N)
    sums,  # (2, N): the gradients of affine
    starts,  # (sets + 1,) unless EQUAL_SETS
    partial,  # (programs, sets, N)
    rows,
    sets,
    programs,
    N: tl.constexpr,
    EQUAL_SETS: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The sums of the gradient at z over each set, whose tiles its programs take in turn."""
    program = tl.program_id(0)
    owner = program % sets
    if EQUAL_SETS:
        rows_a_set = rows // sets
        first = owner * rows_a_set
        last = first + rows_a_set
    else:
        first = tl.load(starts + owner).to(tl.int32)
        last = tl.load(starts + owner + 1).to(tl.int32)
    r, n = tl.arange(0, BLOCK_R), tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    mean, rstd = columns(statistics, MEAN, n, N)[None, :], columns(statistics, RSTD, n, N)
    factor, shift = rstd * columns(affine, SCALE, n, N), columns(affine, SHIFT, n, N)[None, :]
    constant = columns(sums, SHIFT, n, N)[None, :] / rows
    slope = (columns(sums, SCALE, n, N) / rows * rstd)[None, :]
    total = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    for start in range(first + program // sets * BLOCK_R, last, programs * BLOCK_R):
        off = tile(z, start, r, n, last, N) - mean
        values = tile(gradient, start, r, n, last, N)
        values = passed(values, off, factor[None, :], shift, RELU) - constant - off * slope
        total += tl.where((start + r < last)[:, None], values, 0.0)
    of_set = narrowed(tl.sum(total, 0) * factor, partial.dtype.element_ty)
    tl.store(partial + tl.cast(program, tl.int64) * N + n, of_set, mask=n < N)


@triton.jit
def backward_layer(
    gradient,  # (groups, rows, N), behind this layer's norm
    z,  # (groups, rows, N)
    statistics,  # (4, groups, N)
    affine,  # (2, groups, N)
    sums,  # (2, groups, N): the gradients of affine
    weight,  # (groups, N, K)
    x,  # (groups, rows, K), the layer's input, before the norm and the ReLU that it may have
    x_statistics,  # (4, groups, K)
    x_affine,  # (2, groups, K)
    x_gradient,  # (groups, rows, K): written if FOR_X
    partial,  # (programs, [gradients of x_affine if INPUT_NORMED,] gradient of weight)
    rows,
    rows_a_program,
    x_group,  # from one group of x to the next
    K: tl.constexpr,
    N: tl.constexpr,
    INPUT_NORMED: tl.constexpr,
    NORMED: tl.constexpr,
    RELU: tl.constexpr,
    FOR_X: tl.constexpr,
    OPERAND: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The gradients of the weight and of the layer's input; of the latter behind its norm."""
    program, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first = program * rows_a_program
    r, n = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_N)
    k = tl.program_id(2) * BLOCK_K + tl.arange(0, BLOCK_K)
    gradient += group * rows * N
    z += group * rows * N
    x += group * x_group
    x_gradient += group * rows * K
    if NORMED:
        mean = columns(statistics, MEAN, n, N)[None, :]
        rstd = columns(statistics, RSTD, n, N)[None, :]
        factor = rstd * columns(affine, SCALE, n, N)[None, :]
        shift = columns(affine, SHIFT, n, N)[None, :]
        constant = columns(sums, SHIFT, n, N)[None, :] / rows
        slope = columns(sums, SCALE, n, N)[None, :] / rows * rstd
    if INPUT_NORMED:
        x_mean = columns(x_statistics, MEAN, k, K)[None, :]
        x_scale = (columns(x_statistics, RSTD, k, K) * columns(x_affine, SCALE, k, K))[None, :]
        x_shift = columns(x_affine, SHIFT, k, K)[None, :]
    if FOR_X:
        w = weight_tile(weight + group * N * K, n, k, N, K, OPERAND)
    of_shift = tl.zeros((BLOCK_R, BLOCK_K), tl.float32)
    of_scale = tl.zeros((BLOCK_R, BLOCK_K), tl.float32)
    of_weight = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for start in range(first, tl.minimum(first + rows_a_program, rows), BLOCK_R):
        at_z = tile(gradient, start, r, n, rows, N)
        if NORMED:
            off = tile(z, start, r, n, rows, N) - mean
            at_z = passed(at_z, off, factor, shift, RELU)
            at_z = (at_z - constant - off * slope) * factor
            at_z = tl.where((start + r < rows)[:, None], at_z, 0.0)
        at_z = operand(at_z, OPERAND)
        a = tile(x, start, r, k, rows, K)
        if INPUT_NORMED:
            x_off = a - x_mean
            a = x_off * x_scale + x_shift
            a = tl.where(a < 0, 0.0, a)
        of_weight = product(tl.trans(at_z), operand(a, OPERAND), of_weight, OPERAND)
        if FOR_X:
            total = tl.zeros((BLOCK_R, BLOCK_K), tl.float32)
            total = product(at_z, w, total, OPERAND)
            if INPUT_NORMED:
                total = tl.where(a > 0, total, 0.0)
            stored = narrowed(total, x_gradient.dtype.element_ty)
            store_tile(x_gradient, start, r, k, rows, stored, K)
            if INPUT_NORMED:
                of_shift += stored.to(tl.float32)
                of_scale += stored.to(tl.float32) * x_off
    width = tl.num_programs(1) * K
    partial += tl.cast(program, tl.int64) * width * (N + 2 * INPUT_NORMED)
    if INPUT_NORMED:
        at = partial + group * K + k
        x_rstd = columns(x_statistics, RSTD, k, K)
        tl.store(at, tl.sum(of_scale, 0) * x_rstd, mask=k < K)
        tl.store(at + width, tl.sum(of_shift, 0), mask=k < K)
        partial += 2 * width
    store_tile(partial + group * N * K, 0, n, k, N, of_weight, K)


@triton.jit
def add_up(
    partial,  # (programs, numbers)
    total,  # (numbers,)
    programs,
    numbers,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The sums of what the programs of one of the kernels above have found."""
    p = tl.arange(0, BLOCK_P)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    slots = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for start in range(0, programs, BLOCK_P):
        inside = (start + p < programs)[:, None] & (n < numbers)[None, :]
        at = partial + tl.cast(start + p, tl.int64)[:, None] * numbers + n[None, :]
        slots += tl.load(at, mask=inside, other=0.0)
    found = narrowed(tl.sum(slots, 0), total.dtype.element_ty)
    tl.store(total + n, found, mask=n < numbers)
