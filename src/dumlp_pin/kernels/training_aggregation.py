"""Training of an aggregation block of two factors, its MLPs and their product, by Triton kernels.

Softmax over the set and the products, one forward and two backward, are a dozen kernels of PyTorch,
which write and read the activated factors. Here they are one forward and one backward; they read
what the last layers of the MLPs multiply, and leave the sums with which the way back through the
MLPs begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from dumlp_pin._layout import Sets
from dumlp_pin.batchnorm import BatchNorm
from dumlp_pin.functional import ACTIVATIONS, dot_product
from dumlp_pin.kernels.training import (
    can_run_side_by_side,
    dtype_of,
    parameters_of,
    update_running,
    why_not_in_training,
)
from dumlp_pin.kernels.training_ops import (
    Kept,
    back_through_layers,
    gradients_by,
    layers_of,
    multiply_layers,
    plain_forward,
    split,
    sums_at_end,
)
from dumlp_pin.sets import SetBatch

if TYPE_CHECKING:
    from dumlp_pin.blocks import MLP, AggregationBlock

KNOWN = ("softmax", "relu", "elu", "none")
# A program holds a tile of both factors and the product of all their columns.
WIDEST = 32


def why_not_aggregation(block: AggregationBlock, x: Sets, mask: Tensor | None = None) -> str | None:
    """Why `aggregate_in_training` cannot take the place of the plain way; None if it can."""
    if block.process_group is not None:
        return "the set is on several processes"
    if len(block.branches) != 2:
        return f"the kernels multiply two factors, not {len(block.branches)}"
    for name in block.activations:
        if name not in KNOWN:
            return f"no kernel for training has {name}"
    first, second = mlps = [cast("MLP", mlp) for mlp in block.branches]
    if first.widths != second.widths:
        return "the branches differ in their widths"
    if first.widths[-1] > WIDEST:
        return f"the factors are wider than {WIDEST}"
    if len(first.norms) != len(first.linears):
        return "a branch ends without a batch norm"
    values = x.rows if isinstance(x, SetBatch) else x
    if values.ndim != (2 if isinstance(x, SetBatch) else 3):
        return f"sets of shape {tuple(values.shape)} do not fit"
    for mlp in mlps:
        if (reason := why_not_in_training(mlp, values, mask)) is not None:
            return reason
    return None if can_run_side_by_side(mlps) else "the branches share a norm, or differ in theirs"


def aggregate_in_training(block: AggregationBlock, x: Sets) -> Tensor:
    """(B, C, C): the product of the block's activated branches, running estimates included.

    `why_not_aggregation` says where this is impossible. The kernels have a first derivative only;
    further ones are those of plain operations.
    """
    mlps = [cast("MLP", mlp) for mlp in block.branches]
    rows, starts = (x.rows, x.offsets) if isinstance(x, SetBatch) else (x.flatten(0, 1), None)
    dtype = dtype_of(rows)
    y, _, statistics, _ = aggregate(
        rows,
        torch.cat([parameter.flatten() for parameter in parameters_of(mlps)]),
        starts,
        len(x) if starts is None else len(starts) - 1,
        mlps[0].widths,
        *block.activations,
        cast(BatchNorm, mlps[0].norms[0]).eps,
        dtype,
        torch.float32 if starts is None and _widened(rows, block.activations[0]) else dtype,
    )
    update_running(mlps, statistics)
    return y


def _widened(rows: Tensor, activation: str) -> bool:
    """Whether the left factor of sets of equal size, and so y, would come as float32.

    On a GPU, autocast does this to PyTorch's softmax; that of a SetBatch keeps the type.
    """
    return activation == "softmax" and rows.is_cuda and torch.is_autocast_enabled("cuda")


def plain_product(
    factors: Tensor, starts: Tensor | None, sets: int, left: str, right: str
) -> Tensor:
    """(B, C, C) from both factors (2, T, C), by operations of PyTorch."""
    activated = []
    for name, rows in zip((left, right), factors.unbind(0), strict=True):
        equal = starts is None
        factor = rows.unflatten(0, (sets, -1)) if equal else SetBatch._trusted(rows, starts)
        activated.append(ACTIVATIONS[name](factor))
    return dot_product(activated)


@torch.library.custom_op("dumlp_pin::aggregate", mutates_args=())
def aggregate(
    x: Tensor,
    parameters: Tensor,
    starts: Tensor | None,
    sets: int,
    widths: Sequence[int],
    left: str,
    right: str,
    eps: float,
    dtype: torch.dtype,
    y_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From x (T, F) y (B, C, C), sums (B, C + 4, C) beside it, and statistics and z of two MLPs.

    Parameters, statistics and z of the MLPs, whose layers all have a norm, are as `mlps_forward`
    has them. `starts` (B + 1,) are the offsets of a SetBatch; without, all sets have the same size.
    """
    from dumlp_pin.kernels import training_product_launch as launch

    y, sums, statistics, z = _empty_outputs(x, sets, widths, dtype, y_dtype)
    kept = _split(parameters, statistics, z, x, widths)
    multiply_layers(kept, x, y, eps)
    launch.forward(kept[-1], starts, left, right, y, sums)
    return y, sums, statistics, z


@aggregate.register_fake
def _(
    x: Tensor,
    parameters: Tensor,
    starts: Tensor | None,
    sets: int,
    widths: Sequence[int],
    left: str,
    right: str,
    eps: float,
    dtype: torch.dtype,
    y_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _empty_outputs(x, sets, widths, dtype, y_dtype)


def _empty_outputs(
    x: Tensor, sets: int, widths: Sequence[int], dtype: torch.dtype, y_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    C, columns = widths[-1], 2 * sum(widths[1:])
    return (
        x.new_empty(sets, C, C, dtype=y_dtype),
        x.new_empty(sets, C + 4, C, dtype=torch.float32),
        x.new_empty(4 * columns, dtype=torch.float32),
        x.new_empty(x.shape[0] * columns, dtype=dtype),
    )


def _split(
    parameters: Tensor, statistics: Tensor, z: Tensor, x: Tensor, widths: Sequence[int]
) -> list[Kept]:
    layers = layers_of(widths, norms=len(widths) - 1, groups=2)
    return split(parameters, statistics, z, layers, rows=x.shape[0])


@torch.library.custom_op("dumlp_pin::aggregate_backward", mutates_args=())
def aggregate_backward(
    y_gradient: Tensor,
    x: Tensor,
    parameters: Tensor,
    starts: Tensor | None,
    sums: Tensor,
    statistics: Tensor,
    z: Tensor,
    widths: Sequence[int],
    left: str,
    right: str,
    for_x: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of x, without a number unless `for_x`, and of the parameters."""
    from dumlp_pin.kernels import training_product_launch as launch

    kept = _split(parameters, statistics, z, x, widths)
    total = torch.zeros_like(parameters, dtype=torch.float32)
    gradient, at_end = torch.empty_like(kept[-1].z), sums_at_end(total, kept[-1].layer)
    y_gradient = y_gradient.contiguous()
    launch.backward(kept[-1], starts, left, right, sums, y_gradient, gradient, at_end)
    x_gradient = back_through_layers(kept, x, gradient, total, for_x)
    return x_gradient, total.to(parameters.dtype)


@aggregate_backward.register_fake
def _(
    y_gradient: Tensor,
    x: Tensor,
    parameters: Tensor,
    starts: Tensor | None,
    sums: Tensor,
    statistics: Tensor,
    z: Tensor,
    widths: Sequence[int],
    left: str,
    right: str,
    for_x: bool,
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape if for_x else 0), torch.empty_like(parameters)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, parameters, starts, ctx.sets, ctx.widths, ctx.left, ctx.right, ctx.eps, _, _ = inputs
    _, sums, statistics, z = output
    ctx.mark_non_differentiable(sums, statistics, z)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, parameters, starts, sums, statistics, z)


def _backward(ctx: Any, y_gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    inputs, kept = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
    widths, names = ctx.widths, (ctx.left, ctx.right)

    def plain(x: Tensor, parameters: Tensor, starts: Tensor | None) -> Tensor:
        norms = len(widths) - 1
        factors = plain_forward(x, parameters, None, None, widths, norms, 2, 0, False, ctx.eps)
        return plain_product(factors, starts, ctx.sets, *names)

    def fast(y_gradient: Tensor, for_x: bool) -> Sequence[Tensor]:
        return aggregate_backward(y_gradient, *inputs, *kept, widths, *names, for_x)

    return gradients_by(fast, plain, inputs, y_gradient, ctx.needs_input_grad)


aggregate.register_autograd(_backward, setup_context=_keep)
