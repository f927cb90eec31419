"""Training of MLPs as two operations of PyTorch, forward and backward, made of Triton kernels.

G MLPs of the same widths run side by side. Their parameters come as one vector: of each layer the
weights (G, N, K), the biases (G, N) and, where a norm follows, its scales and shifts (2, G, N).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

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
    x: Tensor, parameters: Tensor, widths: Sequence[int], norms: int, groups: int, eps: float
) -> Tensor:
    """The y of `mlps_forward`, by operations of PyTorch."""
    layers = layers_of(widths, norms, groups)
    parts = iter(parameters.split([size for layer in layers for size in layer.sizes]))
    for index, (G, K, N, normed) in enumerate(layers):
        weight, bias, affine = (next(parts) for _ in range(3))
        x = x @ weight.view(G, N, K).mT + bias.view(G, 1, N)
        if normed:
            scale, shift = affine.view(2, G, 1, N)
            variance, mean = torch.var_mean(x, -2, correction=0, keepdim=True)
            x = (x - mean) * torch.rsqrt(variance + eps) * scale + shift
        if index < len(layers) - 1:
            x = torch.relu(x)
    return x


@torch.library.custom_op("dumlp_pin::mlps_forward", mutates_args=())
def mlps_forward(
    x: Tensor,
    parameters: Tensor,
    widths: Sequence[int],
    norms: int,
    groups: int,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """From x (rows, F) for all MLPs, or (G, rows, F), y (G, rows, N), statistics and z.

    The first `norms` layers have a batch norm; y and z are of `dtype`. All z are one vector, and
    so are all statistics: `split` takes them apart.
    """
    from dumlp_pin.kernels import training_launch as launch

    layers = layers_of(widths, norms, groups)
    y, statistics, z = _empty_outputs(x, layers, dtype)
    kept = split(parameters, statistics, z, layers, rows=x.shape[-2])
    source, before = x.contiguous(), None
    for of_layer in kept:
        launch.forward(of_layer, source, before, of_layer.z if of_layer.layer.normed else y, eps)
        source, before = of_layer.z, of_layer
    if kept[-1].layer.normed:
        launch.normalise(kept[-1], y)
    return y, statistics, z


@mlps_forward.register_fake
def _(
    x: Tensor,
    parameters: Tensor,
    widths: Sequence[int],
    norms: int,
    groups: int,
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
    statistics: Tensor,
    z: Tensor,
    widths: Sequence[int],
    norms: int,
    groups: int,
    for_x: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of x, without a number unless `for_x`, and of the parameters."""
    from dumlp_pin.kernels import training_launch as launch

    layers = layers_of(widths, norms, groups)
    kept = split(parameters, statistics, z, layers, rows=x.shape[-2])
    # The gradient of a bias stays 0 where a norm takes the bias away. A layer's kernel finds the
    # gradients of its weight and of the norm before it: they lie side by side.
    total = torch.zeros_like(parameters, dtype=torch.float32)
    begins = list(accumulate((sum(layer.sizes) for layer in layers), initial=0))
    gradient = y_gradient.contiguous()
    sums = total[-(layers[-1].sizes[2] or layers[-1].sizes[1]) :]
    launch.sum_output(kept[-1], gradient, sums)
    for index in range(len(kept) - 1, 0, -1):
        of_layer, before = kept[index], kept[index - 1]
        begin, affine = begins[index], before.layer.sizes[2]
        found = total[begin - affine : begin + of_layer.layer.sizes[0]]
        target = torch.empty_like(before.z)
        launch.backward(of_layer, gradient, sums, before.z, before, target, found)
        gradient, sums = target, found[:affine]
    x_gradients = x.new_empty(groups, *x.shape[-2:]) if for_x else None
    found = total[: layers[0].sizes[0]]
    launch.backward(kept[0], gradient, sums, x.contiguous(), None, x_gradients, found)
    return _of_input(x_gradients, x), total.to(parameters.dtype)


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
    statistics: Tensor,
    z: Tensor,
    widths: Sequence[int],
    norms: int,
    groups: int,
    for_x: bool,
) -> tuple[Tensor, Tensor]:
    x_gradient = x.new_empty(x.shape) if for_x else x.new_empty(0)
    return x_gradient, torch.empty_like(parameters)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, parameters, ctx.widths, ctx.norms, ctx.groups, ctx.eps, _ = inputs
    _, statistics, z = output
    ctx.mark_non_differentiable(statistics, z)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, parameters, statistics, z)


def _backward(ctx: Any, y_gradient: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():  # the gradient's own gradient is asked for: operations have one
        x, parameters = ctx.saved_tensors[:2]
        y = plain_forward(x, parameters, ctx.widths, ctx.norms, ctx.groups, ctx.eps)
        wanted = [tensor for tensor in (x, parameters) if tensor.requires_grad]
        found = torch.autograd.grad(y, wanted, y_gradient.to(y.dtype), create_graph=True)
        gradients = iter(found)
        return *(next(gradients) if t.requires_grad else None for t in (x, parameters)), *[None] * 5
    x_gradient, gradient = mlps_backward(
        y_gradient, *ctx.saved_tensors, ctx.widths, ctx.norms, ctx.groups, ctx.needs_input_grad[0]
    )
    return x_gradient if ctx.needs_input_grad[0] else None, gradient, *[None] * 5


mlps_forward.register_autograd(_backward, setup_context=_keep)
