"""Training of MLPs as two operations of PyTorch, forward and backward, made of Triton kernels.

G MLPs of the same widths run side by side. Their parameters come as one vector: of each layer the
weights (G, N, K), the biases (G, N) and, where a norm follows, its scales and shifts (2, G, N).

Rows may belong to B sets, one set's after the other's, of which each adds an offset of its own to
the product z of one layer, before the norm. If all have equally many rows, their number says it
all; else `starts` (B + 1,) does, as the offsets of a `SetBatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor


class Layer(NamedTuple):
    """A layer of each of `groups` MLPs, from K to N features."""

    groups: int
    K: int
    N: int
    normed: bool

    @property
    def columns(self) -> int:
        return self.groups * self.N

    @property
    def normed_columns(self) -> int:
        return self.columns * self.normed

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many parameters: weights, biases, scales and shifts."""
        return self.columns * self.K, self.columns, 2 * self.normed_columns


class Kept(NamedTuple):
    """What belongs to a layer: parameters, and what the forward pass keeps for the backward."""

    layer: Layer
    weight: Tensor  # (groups N K,)
    bias: Tensor  # (groups N,)
    affine: Tensor  # (2 groups N,) of the norm, or nothing, and so are the next two
    statistics: Tensor  # (4 groups N,): see `combine_statistics`
    z: Tensor  # (groups, rows, N), before the norm


class Offset(NamedTuple):
    """What each set adds to the products of its rows."""

    values: Tensor  # (B, N)
    starts: Tensor | None

    def owners(self, rows: int) -> Tensor | None:
        """(rows,) whose each one is; None where all sets have equally many."""
        if self.starts is None:
            return None
        each = torch.arange(rows, device=self.starts.device)
        return torch.searchsorted(self.starts[1:], each, right=True)

    def spread(self, rows: int) -> Tensor:
        """(rows, N)."""
        owners = self.owners(rows)
        if owners is None:
            return self.values.repeat_interleave(rows // len(self.values), 0)
        return self.values[owners]


def layers_of(widths: Sequence[int], norms: int, groups: int) -> list[Layer]:
    return [
        Layer(groups, before, after, index < norms)
        for index, (before, after) in enumerate(pairwise(widths))
    ]


def split_statistics(statistics: Tensor, layers: Sequence[Layer]) -> Sequence[Tensor]:
    return statistics.split([4 * layer.normed_columns for layer in layers])


def split(
    parameters: Tensor, statistics: Tensor, z: Tensor, layers: Sequence[Layer], rows: int
) -> list[Kept]:
    of_parameters = iter(parameters.split([size for layer in layers for size in layer.sizes]))
    of_statistics = split_statistics(statistics, layers)
    of_z = z.split([rows * layer.normed_columns for layer in layers])
    kept = []
    for layer, numbers, products in zip(layers, of_statistics, of_z, strict=True):
        weight, bias, affine = (next(of_parameters) for _ in range(3))
        kept.append(Kept(layer, weight, bias, affine, numbers, _grouped(products, layer)))
    return kept


def _grouped(z: Tensor, layer: Layer) -> Tensor:
    return z.view(layer.groups, -1, layer.N)


def plain_forward(
    x: Tensor,
    parameters: Tensor,
    offset: Tensor | None,
    starts: Tensor | None,
    widths: Sequence[int],
    norms: int,
    groups: int,
    offset_at: int,
    relu: bool,
    eps: float,
) -> Tensor:
    """The y of `mlps_forward`, by operations of PyTorch."""
    layers = layers_of(widths, norms, groups)
    x = x.to(torch.promote_types(x.dtype, parameters.dtype))
    parts = iter(parameters.to(x.dtype).split([size for each in layers for size in each.sizes]))
    for index, (G, K, N, normed) in enumerate(layers):
        weight, bias, affine = (next(parts) for _ in range(3))
        x = x @ weight.view(G, N, K).mT + bias.view(G, 1, N)
        if offset is not None and index == offset_at:
            x = x + Offset(offset, starts).spread(x.shape[-2])
        if normed:
            scale, shift = affine.view(2, G, 1, N)
            variance, mean = torch.var_mean(x, -2, correction=0, keepdim=True)
            x = (x - mean) * torch.rsqrt(variance + eps) * scale + shift
        if index < len(layers) - 1 or relu:
            x = torch.relu(x)
    return x


@torch.library.custom_op("dumlp_pin::mlps_forward", mutates_args=())
def mlps_forward(
    x: Tensor,
    parameters: Tensor,
    offset: Tensor | None,
    starts: Tensor | None,
    widths: Sequence[int],
    norms: int,
    groups: int,
    offset_at: int,
    relu: bool,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """From x (rows, F) for all MLPs, or (G, rows, F), y (G, rows, N), statistics and z.

    The first `norms` layers have a batch norm; y and z are of `dtype`. All z are one vector, and
    so are all statistics: `split` takes them apart. Where there is an offset (B, N), G is 1, and
    layer `offset_at` takes it; where `relu`, all layers have a norm, and a ReLU follows the last.
    """
    from dumlp_pin.kernels import training_launch as launch

    layers = layers_of(widths, norms, groups)
    y, statistics, z = _empty_outputs(x, layers, dtype)
    kept = split(parameters, statistics, z, layers, rows=x.shape[-2])
    multiply_layers(kept, x, y, eps, _offset(offset, starts), offset_at)
    if kept[-1].layer.normed:
        launch.normalise(kept[-1], y, relu)
    return y, statistics, z


def multiply_layers(
    kept: Sequence[Kept],
    x: Tensor,
    y: Tensor,
    eps: float,
    offset: Offset | None = None,
    offset_at: int = 0,
) -> None:
    """Write the z of each layer and its statistics; y where no norm follows the last."""
    from dumlp_pin.kernels import training_launch as launch

    source, before = x.contiguous(), None
    for index, of_layer in enumerate(kept):
        target = of_layer.z if of_layer.layer.normed else y
        added = offset if index == offset_at else None
        launch.forward(of_layer, source, before, added, target, eps)
        source, before = of_layer.z, of_layer


def _offset(values: Tensor | None, starts: Tensor | None) -> Offset | None:
    return None if values is None else Offset(values.contiguous(), starts)


@mlps_forward.register_fake
def _(
    x: Tensor,
    parameters: Tensor,
    offset: Tensor | None,
    starts: Tensor | None,
    widths: Sequence[int],
    norms: int,
    groups: int,
    offset_at: int,
    relu: bool,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_outputs(x, layers_of(widths, norms, groups), dtype)


def _empty_outputs(
    x: Tensor, layers: Sequence[Layer], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = x.shape[-2], sum(layer.normed_columns for layer in layers)
    y = x.new_empty(layers[-1].groups, rows, layers[-1].N, dtype=dtype)
    statistics = x.new_empty(4 * columns, dtype=torch.float32)
    return y, statistics, x.new_empty(rows * columns, dtype=dtype)


@torch.library.custom_op("dumlp_pin::mlps_backward", mutates_args=())
def mlps_backward(
    y_gradient: Tensor,
    x: Tensor,
    parameters: Tensor,
    offset: Tensor | None,
    starts: Tensor | None,
    statistics: Tensor,
    z: Tensor,
    widths: Sequence[int],
    norms: int,
    groups: int,
    offset_at: int,
    relu: bool,
    for_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, without a number unless `for_x`, of the parameters and of the offset."""
    from dumlp_pin.kernels import training_launch as launch

    layers = layers_of(widths, norms, groups)
    kept = split(parameters, statistics, z, layers, rows=x.shape[-2])
    total = torch.zeros_like(parameters, dtype=torch.float32)
    gradient = y_gradient.contiguous()
    launch.sum_output(kept[-1], gradient, relu, sums_at_end(total, kept[-1].layer))
    offset_gradient = _offset_gradient(offset, x)
    of_offset = None if offset is None else offset_gradient
    x_gradient = back_through_layers(
        kept, x, gradient, total, for_x, relu, of_offset, starts, offset_at
    )
    return x_gradient, total.to(parameters.dtype), offset_gradient


def sums_at_end(total: Tensor, last: Layer) -> Tensor:
    """Of the gradients of all parameters those that are sums of the gradient at the output."""
    return total[-(last.sizes[2] or last.sizes[1]) :]


def back_through_layers(
    kept: Sequence[Kept],
    x: Tensor,
    gradient: Tensor,
    total: Tensor,
    for_x: bool,
    relu: bool = False,
    offset_gradient: Tensor | None = None,
    starts: Tensor | None = None,
    offset_at: int = 0,
) -> Tensor:
    """The gradient of x; into `total`, which has `sums_at_end` alone, come those of parameters.

    The gradient of a bias stays 0 where a norm takes the bias away.
    """
    from dumlp_pin.kernels import training_launch as launch

    # A layer's kernel finds the gradients of its weight and of the norm before it: they lie side by
    # side.
    layers = [of_layer.layer for of_layer in kept]
    begins = list(accumulate((sum(layer.sizes) for layer in layers), initial=0))
    sums = sums_at_end(total, layers[-1])
    x_gradient = x.new_empty(layers[0].groups, *x.shape[-2:]) if for_x else None
    for index in range(len(kept) - 1, -1, -1):
        of_layer, masked = kept[index], relu and index == len(kept) - 1
        if offset_gradient is not None and index == offset_at:
            launch.sum_sets(of_layer, gradient, sums, masked, starts, offset_gradient)
        begin, end = begins[index], begins[index] + of_layer.layer.sizes[0]
        reader = of_layer, gradient, sums, masked
        if index:
            before = kept[index - 1]
            affine = before.layer.sizes[2]
            found, gradient = total[begin - affine : end], torch.empty_like(before.z)
            launch.backward(*reader, before.z, before, gradient, found)
            sums = found[:affine]
        else:
            launch.backward(*reader, x.contiguous(), None, x_gradient, total[:end])
    return _of_input(x_gradient, x)


def _offset_gradient(offset: Tensor | None, x: Tensor) -> Tensor:
    return x.new_empty(0) if offset is None else offset.new_empty(offset.shape)


def _of_input(x_gradients: Tensor | None, x: Tensor) -> Tensor:
    """From those that each MLP hands back."""
    if x_gradients is None:
        return x.new_empty(0)
    if x.ndim == 3:
        return x_gradients
    return x_gradients[0] if len(x_gradients) == 1 else x_gradients.sum(0)


@mlps_backward.register_fake
def _(
    y_gradient: Tensor,
    x: Tensor,
    parameters: Tensor,
    offset: Tensor | None,
    starts: Tensor | None,
    statistics: Tensor,
    z: Tensor,
    widths: Sequence[int],
    norms: int,
    groups: int,
    offset_at: int,
    relu: bool,
    for_x: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    x_gradient = x.new_empty(x.shape) if for_x else x.new_empty(0)
    return x_gradient, torch.empty_like(parameters), _offset_gradient(offset, x)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.widths, ctx.norms, ctx.groups, ctx.offset_at, ctx.relu, ctx.eps, _ = inputs
    _, statistics, z = output
    ctx.mark_non_differentiable(statistics, z)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, statistics, z)


def _backward(ctx: Any, y_gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    inputs, kept = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
    structure: Any = ctx.widths, ctx.norms, ctx.groups, ctx.offset_at, ctx.relu

    def plain(*tensors: Any) -> Tensor:
        return plain_forward(*tensors, *structure, eps=ctx.eps)

    def fast(y_gradient: Tensor, for_x: bool) -> Sequence[Tensor]:
        return mlps_backward(y_gradient, *inputs, *kept, *structure, for_x)

    return gradients_by(fast, plain, inputs, y_gradient, ctx.needs_input_grad)


def gradients_by(
    fast: Callable[[Tensor, bool], Sequence[Tensor]],
    plain: Callable[..., Tensor],
    inputs: Sequence[Tensor | None],
    y_gradient: Tensor | None,
    asked: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Of an operation's inputs those that are asked for, of which x is the first.

    `fast` has no gradient itself; where one is asked for, that of `plain` comes, which has.
    """
    wanted = [which for which, is_asked in enumerate(asked) if is_asked]
    gradients: list[Tensor | None] = [None] * len(asked)
    if y_gradient is None:  # nothing that was made of y has one
        return tuple(gradients)
    if torch.is_grad_enabled():
        # By names of their own: to an input that another is made of, only its own part belongs.
        inputs = [None if value is None else value.view_as(value) for value in inputs]
        y = plain(*inputs)
        of = [cast(Tensor, inputs[which]) for which in wanted]
        found = torch.autograd.grad(y, of, y_gradient.to(y.dtype), create_graph=True)
    else:
        all_found = fast(y_gradient, asked[0])
        found = [all_found[which] for which in wanted]
    for which, gradient in zip(wanted, found, strict=True):
        gradients[which] = gradient
    return tuple(gradients)


mlps_forward.register_autograd(_backward, setup_context=_keep)
