"""The broadcast block in one pass over the elements, as a Triton kernel.

What a set tells its elements, W_y y + b, is a small matrix made beforehand. Each program takes its
rows a tile at a time through all layers, so an element is read once and its result written once.
Where z is too wide to be kept, it never exists as a whole: some of its columns at a time are made,
and go into the product of the next layer at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dumlp_pin.kernels.triton_layers import dot, item, load_tile, relu, rounded


@triton.jit
def broadcast_rows(
    x,  # (T, F)
    keep,  # (T,) what is no padding, or None
    owner,  # (T,) the set of each row, or None if every set has N elements
    told,  # (B, D), what z gets from the set
    weights,  # of all layers one after the other, each (WIDTH_OUT, WIDTH_IN)
    biases,  # of all layers but z, in float32
    y,  # (T, OUT), zero in the padding
    T,
    N,
    rows_each,  # of a program
    F: tl.constexpr,
    OUT: tl.constexpr,
    LAYERS: tl.constexpr,  # of each its padded widths, and where its weight and its bias begin
    Z: tl.constexpr,  # the layer where elements meet their set
    CHUNK: tl.constexpr,  # columns of z at a time
    STAGES: tl.constexpr,  # chunks on their way
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    D: tl.constexpr = item(LAYERS, Z, 1)
    FOLLOWED: tl.constexpr = len(LAYERS) > Z + 1
    before, after = (), ()
    for n in tl.static_range(Z):
        before += (load_layer(weights, LAYERS, n),)
    for n in tl.static_range(Z + 2, len(LAYERS)):
        after += (load_layer(weights, LAYERS, n),)
    if CHUNK == D:
        to_z = load_layer(weights, LAYERS, Z)
        if FOLLOWED:
            from_z = load_layer(weights, LAYERS, Z + 1)
    first = tl.program_id(0).to(tl.int64) * rows_each
    end = tl.minimum(first + rows_each, T)
    for start in range(first, end, TILE):
        a, real = load_tile(x, keep, start, end, F, item(LAYERS, 0, 0), TILE)
        for n in tl.static_range(Z):
            a = relu(times(a, before[n], bias_of(biases, LAYERS, n, TILE), PRECISION))
        a = rounded(a, weights.dtype.element_ty, PRECISION)
        of_set = told + sets_of(owner, start, end, N, TILE)[:, None] * D
        of_set += tl.arange(0, CHUNK)[None, :]
        if CHUNK == D:
            z = tl.load(of_set, mask=real[:, None], other=0).to(tl.float32)
            z = relu(times(a, to_z, z, PRECISION))
            if FOLLOWED:
                z = relu(times(z, from_z, bias_of(biases, LAYERS, Z + 1, TILE), PRECISION))
        else:
            if FOLLOWED:
                sums = bias_of(biases, LAYERS, Z + 1, TILE)
            for column in tl.range(0, D, CHUNK, num_stages=STAGES):
                rows = weights + item(LAYERS, Z, 2) + column * item(LAYERS, Z, 0)
                to_z = load_turned(rows, item(LAYERS, Z, 0), CHUNK, item(LAYERS, Z, 0))
                z = tl.load(of_set + column, mask=real[:, None], other=0).to(tl.float32)
                z = relu(times(a, to_z, z, PRECISION))
                if FOLLOWED:
                    columns = weights + item(LAYERS, Z + 1, 2) + column
                    from_z = load_turned(columns, CHUNK, item(LAYERS, Z + 1, 1), D)
                    sums = times(z, from_z, sums, PRECISION)
                else:
                    store_tile(y, start, end, column, z, real, OUT, PRECISION)
            if FOLLOWED:
                z = relu(sums)
        for n in tl.static_range(Z + 2, len(LAYERS)):
            z = relu(times(z, after[n - Z - 2], bias_of(biases, LAYERS, n, TILE), PRECISION))
        if CHUNK == D or FOLLOWED:
            store_tile(y, start, end, 0, z, real, OUT, PRECISION)


@triton.jit
def store_tile(y, start, end, column, z, real, OUT: tl.constexpr, PRECISION: tl.constexpr):
    """Columns of y (T, OUT) from this one on, of rows from start on."""
    z = rounded(tl.where(real[:, None], z, 0), y.dtype.element_ty, PRECISION)
    rows, columns = tl.arange(0, z.shape[0])[:, None], column + tl.arange(0, z.shape[1])[None, :]
    there = (rows < end - start) & (columns < OUT)
    tl.store(y + start * OUT + rows * OUT + columns, z, mask=there)


@triton.jit
def load_layer(weights, LAYERS: tl.constexpr, n: tl.constexpr):
    """The weight of layer n as (WIDTH_IN, WIDTH_OUT)."""
    into: tl.constexpr = item(LAYERS, n, 0)
    return load_turned(weights + item(LAYERS, n, 2), into, item(LAYERS, n, 1), into)


@triton.jit
def load_turned(matrix, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr):
    """(ROWS, COLUMNS) of a matrix that lies in memory column by column.

    Half-precision matrix units read a right factor either way, those of TF32 only this way.
    """
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    return tl.load(matrix + columns[None, :] * STRIDE + rows[:, None])


@triton.jit
def times(a, weight, sums, PRECISION: tl.constexpr):
    if PRECISION == "tf32":
        a = nearest_tf32(a)
    return dot(a, weight, sums, PRECISION)


@triton.jit
def nearest_tf32(x):
    """The matrix units would cut the rest off, and so make all activations smaller."""
    near = (x.to(tl.int32, bitcast=True) + (1 << 12)) & -(1 << 13)
    return tl.where(x == x, near.to(tl.float32, bitcast=True), x)


@triton.jit
def bias_of(biases, LAYERS: tl.constexpr, n: tl.constexpr, TILE: tl.constexpr):
    """(TILE, WIDTH_OUT): what the sums of layer n begin with.

    Read anew for each tile: the registers that all biases take are needed for activations.
    """
    columns = tl.arange(0, item(LAYERS, n, 1))[None, :]
    bias = tl.load(biases + item(LAYERS, n, 3) + columns)
    return tl.broadcast_to(bias, TILE, item(LAYERS, n, 1))


@triton.jit
def sets_of(owner, start, end, N, TILE: tl.constexpr):
    """(TILE,) the sets of the rows from start on."""
    rows = tl.arange(0, TILE)
    if owner is None:
        # One division of large numbers; those of small ones are fast.
        b = start // N
        sets = b + ((start - b * N).to(tl.int32) + rows) // N
    else:
        sets = tl.load(owner + start + rows, mask=rows < end - start, other=0)
    return sets
