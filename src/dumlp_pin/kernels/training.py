"""Training of MLPs in few passes over their activations, by Triton kernels.

One step of PyTorch reads or writes a layer's activations about fourteen times: linear layer, batch
norm and ReLU each do, forward and backward. Here the product z of each layer is written once, with
its statistics on the way, and whoever reads z applies norm and ReLU: about six times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from dumlp_pin._layout import Sets
from dumlp_pin.batchnorm import BatchNorm
from dumlp_pin.kernels._triton import why_not_on
from dumlp_pin.kernels.training_ops import Offset, layers_of, mlps_forward, split_statistics
from dumlp_pin.kernels.watchers import watcher
from dumlp_pin.kernels.widths import are_as_wide
from dumlp_pin.sets import SetBatch

if TYPE_CHECKING:
    from dumlp_pin.blocks import MLP

# A program has a part of a weight that is as wide as the layer on one side. Where layers are wider,
# their products take the time, not their activations' way to memory and back: cuBLAS is faster.
WIDEST = 256


class Chain(NamedTuple):
    """Layers of several modules one after the other, as if they were one MLP's."""

    widths: tuple[int, ...]
    linears: Sequence[nn.Module]
    norms: Sequence[nn.Module]
    owners: Sequence[nn.Module]

    @property
    def training(self) -> bool:
        return all(owner.training for owner in self.owners)

    def modules(self) -> Iterable[nn.Module]:
        return [part for owner in self.owners for part in owner.modules()]


def mlps_together(mlps: Iterable[nn.Module], x: Sets, mask: Tensor | None = None) -> list[Any]:
    """[mlp(x, mask) for mlp in mlps]: side by side where all can, else one after the other."""
    values = x.rows if isinstance(x, SetBatch) else x
    chosen = [cast("MLP", mlp) for mlp in mlps]
    if any(why_not_in_training(mlp, values, mask) for mlp in chosen):
        return [mlp(x, mask) for mlp in chosen]
    outputs = outputs_in_training(chosen, values)
    return [x.with_rows(y) for y in outputs] if isinstance(x, SetBatch) else outputs


def why_not_in_training(mlp: MLP | Chain, x: Tensor, mask: Tensor | None = None) -> str | None:
    """Why `outputs_in_training` cannot take the place of calling the MLP; None if it can."""
    if (reason := why_not_on(x.device.type)) is not None:
        return reason
    if not mlp.training:
        return "the MLP is not in training"
    if not len(mlp.norms):
        return "the MLP has no batch norm"
    if max(mlp.widths) > WIDEST:
        return f"a layer is wider than {WIDEST}"
    if mask is not None:
        return "batch norms must not count the rows of the padding"
    if x.shape[-1] != mlp.widths[0]:
        return f"{x.shape[-1]} features do not fit"
    if x.shape[:-1].numel() < 2:
        return "batch norms need two rows"
    for dtype in (x.dtype, dtype_of(x)):
        if dtype not in (torch.float32, torch.bfloat16):
            return f"kernels have float32 and bfloat16, not {dtype}"
    return _why_not_these_parts(mlp, x) or _why_not_now()


def _why_not_these_parts(mlp: MLP | Chain, x: Tensor) -> str | None:
    """Anything in an MLP that is not as the MLP made it, or not like the input."""
    for part in (*mlp.linears, *mlp.norms):
        if type(part) not in (nn.Linear, BatchNorm):
            return f"a {type(part).__name__} is in the MLP"
    for part in mlp.modules():
        if (
            part._forward_hooks
            or part._forward_pre_hooks
            or part._backward_hooks
            or part._backward_pre_hooks
        ):
            return f"a {type(part).__name__} has a hook"
        if "forward" in part.__dict__:
            return f"a {type(part).__name__} has a forward of its own"
    return _why_not_these_layers(mlp, x) or _why_not_these_norms(mlp)


def _why_not_these_layers(mlp: MLP | Chain, x: Tensor) -> str | None:
    if not are_as_wide(mlp.linears, mlp.widths):
        return "a layer has other widths than the MLP gave it"
    casts = torch.is_autocast_enabled(x.device.type)
    for linear in cast(Iterable[nn.Linear], mlp.linears):
        if linear.bias is None:
            return "a layer has no bias"
        weight = linear.weight
        for given in (weight, x):
            if type(given) not in (Tensor, nn.Parameter):
                return f"a {type(given).__name__} computes in a way of its own"
        kept = weight.dtype in (torch.float32, torch.bfloat16) if casts else weight.dtype == x.dtype
        if not kept or weight.device != x.device:
            return f"weights are in {weight.dtype} on {weight.device}, not as the input"
    return None


def _why_not_these_norms(mlp: MLP | Chain) -> str | None:
    if len(set(mlp.norms)) < len(mlp.norms):
        return "a batch norm is used twice"
    for norm in cast(Iterable[BatchNorm], mlp.norms):
        if norm.synchronised:
            return "batch norms count the rows of other processes too"
        if not norm.training or norm.running_mean is None:
            return "a batch norm takes or keeps no statistics"
        if (norm.momentum, norm.eps) != (BatchNorm.MOMENTUM, mlp.norms[0].eps):
            return "a batch norm has a momentum or an epsilon of its own"
    return None


def _why_not_now() -> str | None:
    """Who may ask for more than numbers and their gradient: another derivative, a program."""
    if torch.compiler.is_dynamo_compiling():
        return None  # torch.compile, which follows nothing of the rest
    if torch.compiler.is_compiling():
        return "torch.export asks for operations of PyTorch"
    return watcher()


def outputs_in_training(mlps: Sequence[MLP], x: Tensor) -> list[Tensor]:
    """[mlp(x) for mlp in mlps] in training, running estimates included; x is (..., F).

    `why_not_in_training` says where this is impossible.
    The kernels have a first derivative only; further ones are those of plain operations.
    """
    if not can_run_side_by_side(mlps):
        return [output for mlp in mlps for output in outputs_in_training([mlp], x)]
    stacked = stacked_in_training(mlps, x)
    # The gradient of what `unbind` gives is a copy, even of one.
    return [stacked.squeeze(0)] if len(mlps) == 1 else list(stacked.unbind(0))


def can_run_side_by_side(mlps: Sequence[MLP]) -> bool:
    """They are alike, and none moves the estimates of another's norm."""
    shapes = [(mlp.widths, len(mlp.norms), mlp.norms[0].eps) for mlp in mlps]
    norms = [norm for mlp in mlps for norm in mlp.norms]
    return shapes == shapes[:1] * len(shapes) and len(set(norms)) == len(norms)


def stacked_in_training(
    mlps: Sequence[MLP | Chain],
    x: Tensor,
    *,
    relu: bool = False,
    offset: Offset | None = None,
    offset_at: int = 0,
) -> Tensor:
    """(M, ..., C): `outputs_in_training` of M MLPs that can run side by side, as one tensor.

    With `relu` one more ReLU ends them; an `offset` is added to what the layer `offset_at` of a
    single MLP multiplies, before its norm.
    """
    first = mlps[0]
    y, statistics, _ = mlps_forward(
        x.reshape(-1, x.shape[-1]),
        torch.cat([parameter.flatten() for parameter in parameters_of(mlps)]),
        None if offset is None else offset.values,
        None if offset is None else offset.starts,
        first.widths,
        len(first.norms),
        len(mlps),
        offset_at,
        relu,
        cast(BatchNorm, first.norms[0]).eps,
        dtype_of(x),
    )
    update_running(mlps, statistics)
    return y.view(len(mlps), *x.shape[:-1], -1)


def dtype_of(x: Tensor) -> torch.dtype:
    """Of the activations."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def parameters_of(mlps: Sequence[MLP | Chain]) -> list[Tensor]:
    """As `mlps_forward` takes them: layer by layer, of each the same parameter of every MLP."""
    parameters = []
    for index in range(len(mlps[0].linears)):
        parts = [[mlp.linears[index] for mlp in mlps]]
        if index < len(mlps[0].norms):
            parts.append([mlp.norms[index] for mlp in mlps])
        for alike in parts:
            parameters += [part.weight for part in alike] + [part.bias for part in alike]
    return parameters


@torch.no_grad()
def update_running(mlps: Sequence[MLP | Chain], statistics: Tensor) -> None:
    layers = layers_of(mlps[0].widths, len(mlps[0].norms), len(mlps))
    running, fresh, batches = [], [], []
    for index, numbers in enumerate(split_statistics(statistics, layers)[: len(mlps[0].norms)]):
        _, _, means, variances = numbers.view(4, len(mlps), -1).unbind(0)
        for mlp, mean, variance in zip(mlps, means, variances, strict=True):
            norm = cast(BatchNorm, mlp.norms[index])
            # Through `data`, see BatchNorm.
            estimates = cast(list[Tensor], [norm.running_mean, norm.running_var])
            running += [estimate.data for estimate in estimates]
            fresh += [mean, variance]
            batches.append(norm.num_batches_tracked)
    fresh = [new.to(old.dtype) for new, old in zip(fresh, running, strict=True)]
    torch._foreach_lerp_(running, fresh, BatchNorm.MOMENTUM)  # pyright: ignore[reportPrivateImportUsage]
    torch._foreach_add_(batches, 1)  # pyright: ignore[reportPrivateImportUsage]
