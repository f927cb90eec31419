"""What the Triton kernels share: tiles of elements, folded layers, and activations in parts."""

from __future__ import annotations

import math

import triton
import triton.language as tl

BIAS = tl.constexpr(16)  # the least that a matrix product sums over
LOWEST = tl.constexpr(-3.0e38)  # as a peak: unlike -inf it differs from itself by 0


@triton.constexpr_function
def product_of(numbers, start=0, stop=None):
    return math.prod(numbers[start:stop])


@triton.constexpr_function
def sum_of(numbers, stop=None):
    return sum(numbers[:stop])


@triton.constexpr_function
def item(nested, *indices):
    for index in indices:
        nested = nested[index]
    return nested


@triton.constexpr_function
def depth_of(branches, j):
    return len(branches[j])


@triton.constexpr_function
def layers_before(branches, j):
    return sum(len(layers) for layers in branches[:j])


@triton.jit
def load_tile(x, keep, start, stop, F: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Rows start, start + 1, ... of x (T, F) as (TILE, WIDTH), and which of them are elements."""
    rows, features = tl.arange(0, TILE), tl.arange(0, WIDTH)
    real = rows < stop - start
    if keep is not None:
        real &= tl.load(keep + start + rows, mask=real, other=0) != 0
    there = real[:, None] & (features < F)[None, :]
    tile = tl.load(x + start * F + rows[:, None] * F + features[None, :], mask=there, other=0)
    return tile, real


@triton.jit
def load_layer(weights, BRANCHES: tl.constexpr, j: tl.constexpr, n: tl.constexpr):
    """The weight (WIDTH_IN, WIDTH_OUT) of layer n of branch j, and (BIAS, WIDTH_OUT) for `dot`.

    Kept in registers, the biases of all layers would leave too few for the activations. So the
    matrix units add them: the rows sum up to the bias.
    """
    weights += item(BRANCHES, j, n, 2)
    weight = load_matrix(weights, item(BRANCHES, j, n, 0), item(BRANCHES, j, n, 1))
    weights += item(BRANCHES, j, n, 0) * item(BRANCHES, j, n, 1)
    return weight, load_matrix(weights, BIAS, item(BRANCHES, j, n, 1))


@triton.jit
def load_matrix(matrix, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    return tl.load(matrix + rows[:, None] * COLUMNS + columns[None, :])


@triton.jit
def dot(a, b, sums, PRECISION: tl.constexpr):
    """A product of the type of b, added to sums in float32."""
    a = rounded(a, b.dtype, PRECISION)
    if PRECISION == "interpreted":  # Triton's interpreter multiplies no half-precision numbers
        product = tl.dot(a.to(tl.float32), b.to(tl.float32), sums)
    elif PRECISION == "bf16":
        product = tl.dot(a, b, sums)
    else:
        product = tl.dot(a, b, sums, input_precision=PRECISION)
    return product


@triton.jit
def rounded(x, TYPE: tl.constexpr, PRECISION: tl.constexpr):
    """To the nearest number of this type; Triton's interpreter would cut the rest off instead."""
    if PRECISION == "interpreted" and tl.bfloat16 == TYPE:
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
        x = bits.to(tl.float32, bitcast=True)
    return x.to(TYPE)


@triton.jit
def branch(x, layers, BRANCHES: tl.constexpr, j: tl.constexpr, PRECISION: tl.constexpr):
    """MLP j: (TILE, WIDTH_IN of its first layer) -> (TILE, WIDTH_OUT of its last) in float32."""
    for n in tl.static_range(depth_of(BRANCHES, j)):
        if n > 0:
            x = relu(x)
        weight = layers[2 * layers_before(BRANCHES, j) + 2 * n]
        bias = layers[2 * layers_before(BRANCHES, j) + 2 * n + 1]
        ones = tl.full((x.shape[0], BIAS), 1, tl.float32)
        x = dot(x, weight, dot(ones, bias, None, PRECISION), PRECISION)
    return x


@triton.jit
def relu(x):
    """A NaN stays one."""
    return tl.maximum(x, 0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def weigh(x, real, peak, ACTIVATION: tl.constexpr):
    """What is summed up of x (TILE, C), see `_parts`; nothing of what is no element."""
    if ACTIVATION == "softmax":
        weight = tl.exp(tl.where(real[:, None], x, float("-inf")) - peak)
    else:
        weight = tl.where(real[:, None], x, 0)
        if ACTIVATION == "relu":
            weight = relu(weight)
        elif ACTIVATION == "elu":
            weight = relu(weight) + expm1(tl.minimum(weight, 0))
    return weight


@triton.jit
def expm1(x):
    """exp(x) - 1 for x <= 0; where the difference would cancel, its series to rounding error."""
    near = tl.maximum(x, -0.5)
    series = near / 9 + 1
    for n in tl.static_range(8, 1, -1):
        series = near / n * series + 1
    return tl.where(x > -0.5, near * series, tl.exp(x) - 1)


@triton.jit
def mass_with(mass, ratio, weight, ACTIVATION: tl.constexpr):
    """What the scale of a column needs the sum of."""
    if ACTIVATION == "softmax":
        mass = mass * ratio + weight
    elif ACTIVATION == "squash" or ACTIVATION == "squash_authors":
        mass += weight * weight
    return mass


@triton.jit
def scale_of(mass, ACTIVATION: tl.constexpr):
    """Few numbers, so their roots and quotients may be exact to the last digit."""
    if ACTIVATION == "softmax":
        scale = tl.div_rn(1.0, tl.where(mass > 0, mass, 1))
    elif ACTIVATION == "squash":
        scale = tl.div_rn(tl.sqrt_rn(mass), 1 + mass)
    elif ACTIVATION == "squash_authors":
        scale = tl.sqrt_rn(mass) * (1 + mass)
    else:
        scale = mass * 0 + 1
    return scale


@triton.jit
def outer(factors, START: tl.constexpr, STOP: tl.constexpr):
    """Of (M, c_1), (M, c_2), ... (M, c_1 c_2 ...), the product of each row with each."""
    product = factors[START]
    for j in tl.static_range(START + 1, STOP):
        wide = product[:, :, None] * factors[j][:, None, :]
        product = wide.reshape(product.shape[0], product.shape[1] * factors[j].shape[1])
    return product
