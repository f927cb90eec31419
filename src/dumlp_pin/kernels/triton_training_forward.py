"""Linear layers and the batch norms between them, forward, as Triton kernels.

What is kept of a layer is z, its product with the weight before the batch norm: whoever reads z
applies the norm and the ReLU on the way. G groups of a layer run side by side, one of them in each
program, and a tile of BLOCK_R rows has all their columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dumlp_pin.kernels import _triton

INTERPRETED = tl.constexpr(_triton.INTERPRETED)

# Rows of what `combine_statistics` writes, and of the scales and shifts of a norm.
MEAN, RSTD, BIASED_MEAN, VARIANCE = map(tl.constexpr, range(4))
SCALE, SHIFT = map(tl.constexpr, range(2))


@triton.jit
def columns(matrix, row, n, N: tl.constexpr):
    """Of a row of (..., groups, N) this group's columns n, in float32; 0 past the last."""
    at = matrix + (row * tl.num_programs(1) + tl.program_id(1)) * N + n
    return tl.load(at, mask=n < N, other=0.0).to(tl.float32)


@triton.jit
def tile(matrix, start, r, n, rows, N: tl.constexpr):
    """Rows start + r and columns n of (rows, N), in float32; 0 where there is none."""
    inside = (start + r < rows)[:, None] & (n < N)[None, :]
    at = matrix + tl.cast(start, tl.int64) * N + r[:, None] * N + n[None, :]
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_tile(matrix, start, r, n, rows, values, N: tl.constexpr):
    inside = (start + r < rows)[:, None] & (n < N)[None, :]
    at = matrix + tl.cast(start, tl.int64) * N + r[:, None] * N + n[None, :]
    tl.store(at, values, mask=inside)


@triton.jit
def weight_tile(weight, n, k, N: tl.constexpr, K: tl.constexpr, OPERAND: tl.constexpr):
    """A weight (N, K), ready to be multiplied."""
    inside = (n < N)[:, None] & (k < K)[None, :]
    w = tl.load(weight + n[:, None] * K + k[None, :], mask=inside, other=0.0).to(tl.float32)
    return operand(w, OPERAND)


@triton.jit
def rounded(values, BITS: tl.constexpr):
    """float32 to the nearest that has its last bits zero; a NaN stays one."""
    bits = values.to(tl.int32, bitcast=True) + (1 << (BITS - 1)) & -(1 << BITS)
    return tl.where(values == values, bits.to(tl.float32, bitcast=True), values)


@triton.jit
def narrowed(values, dtype: tl.constexpr):
    if INTERPRETED and dtype == tl.bfloat16:  # Triton's interpreter cuts, devices round
        values = rounded(values, 16)
    return values.to(dtype)


@triton.jit
def operand(values, OPERAND: tl.constexpr):
    """What matrix products read of float32."""
    if OPERAND == "bf16":
        values = narrowed(values, tl.bfloat16)
    elif OPERAND == "tf32":  # the matrix units would cut it
        if INTERPRETED:
            values = rounded(values, 13)
        else:
            values = tl.inline_asm_elementwise(
                "cvt.rna.tf32.f32 $0, $1;", "=r,f", [values], tl.int32, is_pure=True, pack=1
            ).to(tl.float32, bitcast=True)
    return values


@triton.jit
def product(left, right, total, OPERAND: tl.constexpr):
    if OPERAND != "bf16":
        total = tl.dot(left, right, total, input_precision=OPERAND)
    elif INTERPRETED:  # Triton's interpreter cannot multiply half-precision numbers
        total = tl.dot(left.to(tl.float32), right.to(tl.float32), total)
    else:
        total = tl.dot(left, right, total)
    return total


@triton.jit
def forward_layer(
    x,  # (groups, rows, K), or (rows, K) for all groups
    statistics,  # (4, groups, K) of the norm before
    affine,  # (2, groups, K)
    weight,  # (groups, N, K)
    bias,  # (groups, N)
    offset,  # (sets, N) of a single group, if OFFSET
    owners,  # (rows,) whose each is, unless EQUAL_SETS
    z,  # (groups, rows, N)
    partial,  # (programs, 2, groups, N): mean and sum of squares about it of each program's rows
    rows,
    rows_a_program,
    x_group,  # from one group of x to the next
    rows_a_set,  # if EQUAL_SETS
    K: tl.constexpr,
    N: tl.constexpr,
    INPUT_NORMED: tl.constexpr,
    NORMED: tl.constexpr,
    OFFSET: tl.constexpr,
    EQUAL_SETS: tl.constexpr,
    OPERAND: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The product z of input and weight; with the bias, unless a norm would take it away again."""
    program, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first = program * rows_a_program
    last = tl.minimum(first + rows_a_program, rows)
    r, k = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_K)
    n = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    x += group * x_group
    z += group * rows * N
    w = tl.trans(weight_tile(weight + group * N * K, n, k, N, K, OPERAND))
    if INPUT_NORMED:
        mean = columns(statistics, MEAN, k, K)[None, :]
        scale = (columns(statistics, RSTD, k, K) * columns(affine, SCALE, k, K))[None, :]
        shift = columns(affine, SHIFT, k, K)[None, :]
    if not NORMED:
        constant = columns(bias, 0, n, N)[None, :]
    # Each place of the tile keeps mean and squares of the rows it has seen, by Welford's formula:
    # nothing is summed over rows until the end.
    slot_mean = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    slot_square = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
    seen = 0.0
    for start in range(first, last, BLOCK_R):
        a = tile(x, start, r, k, rows, K)
        if INPUT_NORMED:
            a = (a - mean) * scale + shift
            a = tl.where(a < 0, 0.0, a)  # unlike maximum it hands a NaN on
        total = tl.zeros((BLOCK_R, BLOCK_N), tl.float32)
        total = product(operand(a, OPERAND), w, total, OPERAND)
        if OFFSET:
            inside = start + r < rows
            if EQUAL_SETS:
                owner = (start + r) // rows_a_set
            else:
                owner = tl.load(owners + start + r, mask=inside, other=0)
            at = offset + tl.where(inside, owner, 0).to(tl.int64)[:, None] * N + n[None, :]
            total += tl.load(at, mask=(n < N)[None, :], other=0.0).to(tl.float32)
        if not NORMED:
            total += constant
        stored = narrowed(total, z.dtype.element_ty)
        store_tile(z, start, r, n, rows, stored, N)
        if NORMED:
            seen += 1.0
            values = stored.to(tl.float32)
            difference = tl.where((start + r < rows)[:, None], values - slot_mean, 0.0)
            slot_mean += difference * (1.0 / seen)
            slot_square += difference * (values - slot_mean)
    if NORMED:
        rows_seen = last - first
        count = ((rows_seen - r + BLOCK_R - 1) // BLOCK_R).to(tl.float32)[:, None]
        centre = tl.sum(slot_mean * count, 0) / rows_seen
        off = slot_mean - centre[None, :]
        square = tl.sum(slot_square + count * off * off, 0)
        centre += tl.sum(count * off, 0) / rows_seen
        width = tl.num_programs(1) * N
        at = partial + program * 2 * width + group * N + n
        tl.store(at, centre, mask=n < N)
        tl.store(at + width, square, mask=n < N)


@triton.jit
def combine_statistics(
    partial,  # (programs, 2, N)
    bias,  # (N,)
    statistics,  # (4, N): mean, 1 / standard deviation, mean with the bias, unbiased variance
    rows,
    rows_a_program,
    programs,
    eps,
    N: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    p = tl.arange(0, BLOCK_P)
    at = partial + p[:, None] * 2 * N + n[None, :]
    inside = (p < programs)[:, None] & (n < N)[None, :]
    means = tl.load(at, mask=inside, other=0.0)
    squares = tl.load(at + N, mask=inside, other=0.0)
    count = tl.minimum(rows - p * rows_a_program, rows_a_program)
    count = tl.maximum(count, 0).to(tl.float32)[:, None]
    # About the first program's mean: sums of large numbers would lose the small ones.
    pivot = tl.load(partial + n, mask=n < N, other=0.0)
    mean = pivot + tl.sum(count * (means - pivot[None, :]), 0) / rows
    off = means - mean[None, :]
    square = tl.sum(squares + count * off * off, 0)
    biased = mean + tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(statistics + MEAN * N + n, mean, mask=n < N)
    tl.store(statistics + RSTD * N + n, tl.rsqrt(square / rows + eps), mask=n < N)
    tl.store(statistics + BIASED_MEAN * N + n, biased, mask=n < N)
    tl.store(statistics + VARIANCE * N + n, square / (rows - 1), mask=n < N)


@triton.jit
def normalise_output(
    z,  # (groups, rows, N)
    statistics,  # (4, groups, N)
    affine,  # (2, groups, N)
    y,  # (groups, rows, N)
    rows,
    N: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    start, of_group = tl.program_id(0) * BLOCK_R, tl.program_id(1).to(tl.int64) * rows * N
    r, n = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_N)
    scale = columns(statistics, RSTD, n, N) * columns(affine, SCALE, n, N)
    values = tile(z + of_group, start, r, n, rows, N) - columns(statistics, MEAN, n, N)[None, :]
    values = values * scale[None, :] + columns(affine, SHIFT, n, N)[None, :]
    if RELU:
        values = tl.where(values < 0, 0.0, values)
    store_tile(y + of_group, start, r, n, rows, narrowed(values, y.dtype.element_ty), N)
