"""Which way a block computes: the plain one, which says what is right, or a faster one.

The faster ways of inference are taken where a block in eval mode meets an input whose result nobody
takes the gradient of; everywhere else the plain way is, silently. `explain` tells.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

import dumlp_pin.blocks as blocks
from dumlp_pin._layout import Sets
from dumlp_pin.batchnorm import BatchNorm
from dumlp_pin.kernels.training import why_not_in_training
from dumlp_pin.kernels.training_broadcast import why_not_broadcast
from dumlp_pin.kernels.watchers import watcher
from dumlp_pin.sets import SetBatch

if TYPE_CHECKING:
    from dumlp_pin.blocks import MLP, BroadcastBlock

# The faster ways of inference, the first that can is taken. Each is a module with `why_not`,
# `aggregate` and `broadcast`, which is imported when it is first asked.
WAYS = {"triton": "dumlp_pin.kernels.gpu", "cpu": "dumlp_pin.kernels.cpu"}


@dataclass(frozen=True)
class Path:
    """The name of a way, "plain", "triton" or "cpu", and why a block takes it."""

    name: str
    reason: str


def kernel_for(
    block: nn.Module, x: Sets, mask: Tensor | None = None, y: Tensor | None = None
) -> Any:
    """The module of the faster way that a block takes in inference; None for the plain one."""
    if torch.compiler.is_compiling():
        return None  # before all else: a compiler that traces this follows nothing of the rest
    notes = _notes.get()
    if block.training and notes is None:
        return None
    path = choose(block, x, mask, y)
    if notes is not None:
        notes[id(block)] = path
    if block.training or path.name == "plain":
        return None
    return importlib.import_module(WAYS[path.name])


def choose(block: nn.Module, x: Sets, mask: Tensor | None = None, y: Tensor | None = None) -> Path:
    """The one place that decides. A broadcast block takes a set's feature y besides its elements.

    In training a block and its MLPs choose for themselves, and this only says what.
    """
    values = x.rows if isinstance(x, SetBatch) else x
    if block.training:
        return _in_training(block, x, mask)
    given = [values] if y is None else [values, y]
    reason = (
        _why_not_inference(given)
        or _why_not_this_input(block, x, mask, y)
        or _why_not_these_modules(block, values)
    )
    if reason is not None:
        return Path("plain", reason)
    reasons = []
    for name, module in WAYS.items():
        reason = importlib.import_module(module).why_not(block, x)
        if reason is None:
            return Path(name, f"inference in {values.dtype} on {values.device.type}")
        reasons.append(reason)
    # A way for other devices has nothing to say.
    return Path("plain", reasons[0] if values.device.type != "cpu" else reasons[-1])


def explain(module: nn.Module, *inputs: Any, **named_inputs: Any) -> dict[str, Path]:
    """Run a block or model once: which way each block in it takes for these inputs, and why.

    >>> from dumlp_pin import create_model
    >>> model, x = create_model("dumlp_pin_digits").eval(), torch.rand(2, 64, 3)
    >>> explain(model, x)["aggregate"]
    Path(name='plain', reason='gradients may be asked for: no torch.inference_mode() here')
    >>> with torch.inference_mode():
    ...     explain(model, x)["aggregate"]
    Path(name='cpu', reason='inference in torch.float32 on cpu')
    """
    notes: dict[int, Path] = {}
    token = _notes.set(notes)
    try:
        module(*inputs, **named_inputs)
    finally:
        _notes.reset(token)
    names = {id(part): name for name, part in module.named_modules()}
    return {names[block]: path for block, path in notes.items()}


_notes: ContextVar[dict[int, Path] | None] = ContextVar("notes", default=None)


def _in_training(block: nn.Module, x: Sets, mask: Tensor | None) -> Path:
    values = x.rows if isinstance(x, SetBatch) else x
    if isinstance(block, blocks.AggregationBlock):
        mlps = cast("Iterable[MLP]", block.branches)
        reasons = [why_not_in_training(mlp, values, mask) for mlp in mlps]
    else:
        reasons = [why_not_broadcast(cast("BroadcastBlock", block), x, mask)]
    if not any(reasons):
        return Path("triton", f"training in {values.dtype} on {values.device.type}")
    return Path("plain", next(filter(None, reasons)))


def _why_not_inference(given: Iterable[Tensor]) -> str | None:
    """What may ask for more than numbers: a derivative, a program, a count of operations."""
    if torch.is_grad_enabled() and any(values.requires_grad for values in given):
        return "a gradient of the input may be asked for"
    return watcher()


def _why_not_this_input(
    block: nn.Module, x: Sets, mask: Tensor | None, y: Tensor | None
) -> str | None:
    """What the faster ways were not made for; what is wrong, the plain way tells in words."""
    values = x.rows if isinstance(x, SetBatch) else x
    for given in (values, mask, y):
        if given is None:
            continue
        if type(given) is not Tensor or given.layout != torch.strided:
            return f"the input is a {type(given).__name__} of layout {given.layout}"
        if given.device != values.device:
            return f"the input is on {given.device} and {values.device}"
    if values.dtype not in (torch.float32, torch.bfloat16):
        return f"the input is in {values.dtype}"
    if torch.is_autocast_enabled(values.device.type):
        return "autocast decides on the types"
    if not _fits(block, x, mask, y):
        return "the input does not fit"
    return None


def _fits(block: nn.Module, x: Sets, mask: Tensor | None, y: Tensor | None) -> bool:
    if isinstance(x, SetBatch):
        values, fits = x.rows, mask is None and x.rows.ndim == 2
    else:
        values, fits = x, x.ndim == 3
        if mask is not None:
            fits = fits and mask.dtype == torch.bool and mask.shape == x.shape[:2]
    if isinstance(block, blocks.AggregationBlock):
        return fits and values.shape[-1] == block.in_features
    block = cast("BroadcastBlock", block)
    num_sets = x.num_sets if isinstance(x, SetBatch) else x.shape[0]
    fits = fits and values.shape[-1] == block.element.widths[0]
    return fits and y is not None and y.shape == (num_sets, block.set.widths[0])


def _why_not_these_modules(block: nn.Module, like: Tensor) -> str | None:
    """Anything in a block that is not as this package made it, or not like the input.

    The dictionaries of a module are read as they are, since this is asked on every call.
    """
    known = (nn.Linear, BatchNorm, nn.ModuleList, blocks.MLP, nn.Dropout)
    gradients, dtype, device = torch.is_grad_enabled(), like.dtype, like.device
    waiting: list[nn.Module] = [block]
    while waiting:
        part = waiting.pop()
        kind = type(part)
        if part is not block:  # its own hooks run around all of this
            if kind not in known:
                return f"a {kind.__name__} is in the block"
            if part.training:
                return f"a {kind.__name__} in the block is in training"
            if part._forward_hooks or part._forward_pre_hooks:
                return f"a {kind.__name__} in the block has a hook"
            if "forward" in part.__dict__ or part._compiled_call_impl is not None:
                return f"a {kind.__name__} in the block has a forward of its own"
        if kind in (nn.Linear, BatchNorm) and part._parameters.get("weight") is None:
            return f"a {kind.__name__} in the block has no weight"
        if kind is BatchNorm and part._buffers.get("running_mean") is None:
            return "a batch norm takes the statistics of each batch"
        for weight in part._parameters.values():
            if weight is None:
                continue
            if gradients and weight.requires_grad:
                return "gradients may be asked for: no torch.inference_mode() here"
            if type(weight) is not nn.Parameter:
                return f"a weight is a {type(weight).__name__}"
            if weight.dtype != dtype or weight.device != device:
                return f"weights are in {weight.dtype} on {weight.device}, not as the input"
        waiting += [child for child in part._modules.values() if child is not None]
    if getattr(block, "process_group", None) is not None:
        return "the set is on several processes"
    return None
