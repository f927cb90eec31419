"""The aggregation block in one pass over the elements, as Triton kernels.

Programs share the rows of all sets equally, whatever the sizes of the sets: each goes through its
rows a tile at a time, and from set to set. A tile goes through all branches and leaves nothing but
its share of the sums in `_parts`, so an element is read once and only the features of sets are
written. The sums of a set that several programs share are merged by a second kernel.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dumlp_pin.kernels.triton_layers import (
    LOWEST,
    branch,
    depth_of,
    dot,
    item,
    load_layer,
    load_tile,
    mass_with,
    outer,
    product_of,
    rounded,
    scale_of,
    sum_of,
    weigh,
)


@triton.jit
def aggregate_rows(
    x,  # (T, F)
    keep,  # (T,) what is no padding, or None
    offsets,  # (B + 1,), or None if every set has N elements
    weights,  # of all layers one after the other, see `layer`
    y,  # (B, c_1 c_2 ...), here written for sets that one program sees all of
    parts,  # (2 P, 2 C + C_1 C_2 ...): peaks, masses and products of parts of other sets
    begun,  # (P,) the set that this program has the first part of but not the last, else -1
    T,
    B,
    N,
    rows_each,  # of a program
    scale,
    F: tl.constexpr,
    BRANCHES: tl.constexpr,  # the layers of each
    WIDTHS: tl.constexpr,  # c_1, c_2, ...
    PADDED: tl.constexpr,  # C_1, C_2, ...: the same as the kernels have it
    ACTIVATIONS: tl.constexpr,
    LEFT: tl.constexpr,  # this many factors make the rows of the product, the others its columns
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    layers = ()
    for j in tl.static_range(len(PADDED)):
        for n in tl.static_range(depth_of(BRANCHES, j)):
            layers += load_layer(weights, BRANCHES, j, n)
    program = tl.program_id(0)
    first = program.to(tl.int64) * rows_each
    end = tl.minimum(first + rows_each, T)
    b = set_of_row(first, offsets, B, N)
    begun_here = -1
    row = first
    while row < end:
        set_begin, set_end = bounds(b, offsets, N)
        stop = tl.minimum(set_end, end)
        peaks, masses = (), ()
        for j in tl.static_range(len(PADDED)):
            peaks += (full_of(LOWEST, 1, PADDED[j]),)
            masses += (full_of(0, TILE, PADDED[j]),)
        product = full_of(0, product_of(PADDED, 0, LEFT), product_of(PADDED, LEFT))
        for start in range(row, stop, TILE):
            tile, real = load_tile(x, keep, start, stop, F, item(BRANCHES, 0, 0, 0), TILE)
            factors, ratios, new_peaks, new_masses = (), (), (), ()
            for j in tl.static_range(len(PADDED)):
                value = branch(tile, layers, BRANCHES, j, PRECISION)
                peak = larger_peak(peaks[j], value, real, item(ACTIVATIONS, j))
                ratio = ratio_of(peaks[j], peak, item(ACTIVATIONS, j))
                factor = weigh(value, real, peak, item(ACTIVATIONS, j))
                factors += (factor,)
                ratios += (ratio,)
                new_peaks += (peak,)
                new_masses += (mass_with(masses[j], ratio, factor, item(ACTIVATIONS, j)),)
            peaks, masses = new_peaks, new_masses
            product = scaled(product, ratios, LEFT)
            left = outer(factors, 0, LEFT)
            if len(PADDED) == LEFT:
                product += tl.sum(left, 0)[:, None]
            else:
                right = outer(factors, LEFT, len(factors))
                right = rounded(right, tile.dtype, PRECISION)
                product = dot(tl.trans(left), right, product, PRECISION)
        columns = ()
        for j in tl.static_range(len(PADDED)):
            columns += (tl.sum(masses[j], 0)[None, :],)
        position = positions(PADDED, LEFT)
        if (row == set_begin) & (stop == set_end):
            scales = ()
            for j in tl.static_range(len(PADDED)):
                scales += (scale_of(columns[j], item(ACTIVATIONS, j)),)
            place, inside = place_of(position, WIDTHS, PADDED)
            whole = scaled(product, scales, LEFT) * scale
            into = y + b.to(tl.int64) * product_of(WIDTHS) + place
            tl.store(into, rounded(whole, y.dtype.element_ty, PRECISION), mask=inside)
        else:
            if row == set_begin:
                begun_here = b
            part = parts + slot_of(program, row != first) * size_of_part(PADDED)
            for j in tl.static_range(len(PADDED)):
                column = tl.arange(0, PADDED[j])[None, :]
                tl.store(part + sum_of(PADDED, j) + column, peaks[j])
                tl.store(part + sum_of(PADDED) + sum_of(PADDED, j) + column, columns[j])
            tl.store(part + 2 * sum_of(PADDED) + position, product)
        row = stop
        b += 1
    tl.store(begun + program, begun_here)


@triton.jit
def merge_parts(
    parts,
    begun,
    offsets,
    y,
    N,
    rows_each,
    scale,
    WIDTHS: tl.constexpr,
    PADDED: tl.constexpr,
    ACTIVATIONS: tl.constexpr,
    SHARE: tl.constexpr,  # of the numbers of a product, to one program
    PARTS: tl.constexpr,  # looked at together
    PRECISION: tl.constexpr,
):
    """Program (p, s) has share s of the set whose first part is program p's of `aggregate_rows`."""
    p = tl.program_id(0)
    b = tl.load(begun + p)
    if b >= 0:
        set_begin, set_end = bounds(b, offsets, N)
        last = (set_end - 1) // rows_each
        # Any number of the product is the product of one column of each factor.
        position = tl.program_id(1) * SHARE + tl.arange(0, SHARE)
        peaks, masses = (), ()
        for _ in tl.static_range(len(PADDED)):
            peaks += (full_of(LOWEST, 1, SHARE),)
            masses += (full_of(0, 1, SHARE),)
        product = full_of(0, 1, SHARE)
        for start in range(p, last + 1, PARTS):
            program = start + tl.arange(0, PARTS)[:, None]
            real = program <= last
            late = (program == p) & (set_begin != p.to(tl.int64) * rows_each)
            part = parts + slot_of(program, late) * size_of_part(PADDED)
            share = tl.load(part + 2 * sum_of(PADDED) + position[None, :], mask=real, other=0)
            new_peaks, new_masses = (), ()
            for j in tl.static_range(len(PADDED)):
                column = sum_of(PADDED, j) + column_of(position, PADDED, j)[None, :]
                theirs = tl.load(part + column, mask=real, other=LOWEST)
                weight = tl.load(part + sum_of(PADDED) + column, mask=real, other=0)
                peak = tl.maximum(peaks[j], tl.max(theirs, 0)[None, :])
                ours, theirs = tl.exp(peaks[j] - peak), tl.exp(theirs - peak)
                product *= ours
                share *= theirs
                new_peaks += (peak,)
                new_masses += (masses[j] * ours + tl.sum(weight * theirs, 0)[None, :],)
            peaks, masses = new_peaks, new_masses
            product += tl.sum(share, 0)[None, :]
        for j in tl.static_range(len(PADDED)):
            product *= scale_of(masses[j], item(ACTIVATIONS, j))
        place, inside = place_of(position[None, :], WIDTHS, PADDED)
        into = y + b.to(tl.int64) * product_of(WIDTHS) + place
        tl.store(into, rounded(product * scale, y.dtype.element_ty, PRECISION), mask=inside)


@triton.jit
def set_of_row(row, offsets, B, N):
    """The set that this row belongs to: the last that begins at or before it."""
    if offsets is None:
        low = (row // N).to(tl.int32)
    else:
        low, high = B * 0, B
        while high - low > 1:
            middle = (low + high) // 2
            below = tl.load(offsets + middle) <= row
            low = tl.where(below, middle, low)
            high = tl.where(below, high, middle)
    return low


@triton.jit
def bounds(b, offsets, N):
    if offsets is None:
        begin = b.to(tl.int64) * N
        end = begin + N
    else:
        begin, end = tl.load(offsets + b), tl.load(offsets + b + 1)
    return begin, end


@triton.jit
def slot_of(program, late):
    """A program has at most two parts: one begins with its first row, one is late."""
    return 2 * program.to(tl.int64) + late.to(tl.int64)


@triton.constexpr_function
def size_of_part(padded):
    return 2 * sum_of(padded) + product_of(padded)


@triton.jit
def full_of(value, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    return tl.full((ROWS, COLUMNS), value, tl.float32)


@triton.jit
def larger_peak(peak, value, real, ACTIVATION: tl.constexpr):
    """Only a softmax shifts by its peak."""
    if ACTIVATION == "softmax":
        peak = tl.maximum(peak, tl.max(tl.where(real[:, None], value, LOWEST), 0)[None, :])
    return peak


@triton.jit
def ratio_of(old, new, ACTIVATION: tl.constexpr):
    """What the sums so far are worth under another peak."""
    ratio = full_of(1, old.shape[0], old.shape[1])
    if ACTIVATION == "softmax":
        ratio = tl.exp(old - new)
    return ratio


@triton.jit
def scaled(product, scales, LEFT: tl.constexpr):
    """The numbers of a product times the scales (1, C_j) of the columns they are made of."""
    product *= tl.trans(outer(scales, 0, LEFT))
    if len(scales) > LEFT:
        product *= outer(scales, LEFT, len(scales))
    return product


@triton.jit
def positions(PADDED: tl.constexpr, LEFT: tl.constexpr):
    """Where in memory the numbers of a product are that is spread over programs' registers."""
    rows = tl.arange(0, product_of(PADDED, 0, LEFT))
    columns = tl.arange(0, product_of(PADDED, LEFT))
    return rows[:, None] * product_of(PADDED, LEFT) + columns[None, :]


@triton.jit
def column_of(position, PADDED: tl.constexpr, j: tl.constexpr):
    """The column of factor j that goes into the number at this position."""
    return position // product_of(PADDED, j + 1) % PADDED[j]


@triton.jit
def place_of(position, WIDTHS: tl.constexpr, PADDED: tl.constexpr):
    """Where it belongs in the feature of the set, and whether it does: the padding does not."""
    place, inside = position * 0, position >= 0
    for j in tl.static_range(len(PADDED)):
        column = column_of(position, PADDED, j)
        place = place * WIDTHS[j] + column
        inside &= column < WIDTHS[j]
    return place, inside
