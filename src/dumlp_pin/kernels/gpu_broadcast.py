"""The broadcast block in inference on a GPU: where its kernel applies, and its launch."""

from __future__ import annotations

import importlib
import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from dumlp_pin._layout import Sets, SetsT
from dumlp_pin.kernels.device import is_hopper, precision_of, processors, shared_memory
from dumlp_pin.kernels.fold import Layer, fold, fold_mlp, scale_and_shift
from dumlp_pin.kernels.pack import pack_turned, places_turned
from dumlp_pin.kernels.prepared import prepared
from dumlp_pin.kernels.widths import are_as_wide
from dumlp_pin.sets import SetBatch

if TYPE_CHECKING:
    from dumlp_pin.blocks import BroadcastBlock

Widths = tuple[int, ...]
EXACT = "tf32x3"
# What the registers of a program hold of an element: before it meets its set, and after.
WIDEST_BEFORE, WIDEST_AFTER = 128, 256


def why_not(block: BroadcastBlock, x: Sets) -> str | None:
    """Why the kernel cannot take the place of the block; None if it can."""
    if block.cross is not None:
        return "the cross term has no faster way"
    if precision_of(x) == EXACT:
        return "float32 at 'highest' keeps digits that matrix units lose in long sums"
    if not all(are_as_wide(mlp.linears, mlp.widths) for mlp in (block.element, block.combined)):
        return "a layer has other widths than its MLP gave it"
    return _why_not_shape(shape_of(block, x), x.device)


@cache  # since it is asked on every call
def _why_not_shape(shape: Shape, device: torch.device) -> str | None:
    before, after = max(shape.before), max(shape.after[1:], default=0)
    for widest, most in ((before, WIDEST_BEFORE), (after, WIDEST_AFTER)):
        if widest > most:
            return f"a layer is wider than the {most} that the kernel keeps in registers: {widest}"
    if plan_for(shape, device) is None:
        return "the weights need more than a multiprocessor's memory"
    return None


def broadcast(block: BroadcastBlock, x: SetsT, y: Tensor, mask: Tensor | None = None) -> SetsT:
    """(B, N, out_features), zero in the padding, or a SetBatch, as the block gives it in eval."""
    rows = (x.rows if isinstance(x, SetBatch) else x.flatten(0, 1)).contiguous()
    z = rows.new_empty(rows.shape[0], block.out_features)
    if rows.shape[0] > 0:
        with torch.cuda.device_of(rows):
            _launch(block, rows, x, y, mask, z)
    if isinstance(x, SetBatch):
        return x.with_rows(z)
    return z.view(*x.shape[:2], block.out_features)


def _launch(
    block: BroadcastBlock, rows: Tensor, x: Sets, y: Tensor, mask: Tensor | None, z: Tensor
) -> None:
    kernels: Any = importlib.import_module("dumlp_pin.kernels.triton_broadcast")
    shape = shape_of(block, rows)
    plan = cast(Plan, plan_for(shape, rows.device))
    packed = prepared(block, shape.precision, lambda: _packed(block, shape))
    T = rows.shape[0]
    tiles = math.ceil(T / plan.tile)
    tiles_each = math.ceil(tiles / (plan.together * processors(rows.device)))
    owner, N = (x.set_index, 0) if isinstance(x, SetBatch) else (None, x.shape[1])
    keep = None if mask is None else mask.reshape(-1)
    kernels.broadcast_rows[(math.ceil(tiles / tiles_each),)](
        rows, keep, owner, _told(packed.of_set, y), packed.weights, packed.biases, z,
        T, N, tiles_each * plan.tile,
        F=rows.shape[1], OUT=z.shape[1], LAYERS=shape.layers, Z=shape.z,
        CHUNK=shape.chunk(plan), STAGES=plan.stages, TILE=plan.tile, PRECISION=shape.precision,
        num_warps=plan.warps, num_stages=1,
    )  # fmt: skip


def _told(of_set: list[Layer], y: Tensor) -> Tensor:
    """(B, D), what z gets from the set, its bias included."""
    *mlp, last = of_set
    for weight, bias in mlp:
        y = F.linear(y, weight, bias).relu_()
    return F.linear(y, *last)


class Packed(NamedTuple):
    """A broadcast block without its norms."""

    of_set: list[Layer]
    weights: Tensor
    biases: Tensor


def _packed(block: BroadcastBlock, shape: Shape) -> Packed:
    weight = block.from_set.weight
    to_z, bias = fold(block.from_element, block.norm)
    if block.norm is not None:
        weight = weight * scale_and_shift(block.norm)[0][:, None]
    D = shape.layers[shape.z][1]
    pad = D - len(weight)
    of_set = [*fold_mlp(block.set), (F.pad(weight, (0, 0, 0, pad)), F.pad(bias, (0, pad)))]
    layers = [*fold_mlp(block.element), (to_z, None), *fold_mlp(block.combined)]
    weights, biases = pack_turned(layers, shape.dtype, shape.precision)
    return Packed([(w.to(shape.dtype), b.to(shape.dtype)) for w, b in of_set], weights, biases)


class Plan(NamedTuple):
    """What a program is given, and how much of z it makes at a time."""

    chunk: int | None  # columns whose weights are read anew for each tile; None: all are kept
    tile: int  # elements at a time
    warps: int
    together: int  # programs on a multiprocessor
    stages: int = 1  # chunks on their way


# For each precision, the first that has the memory is taken; the last are for smaller GPUs than an
# H200. As compiled for it, with the widths of this package's models, none has more than one
# register go to memory and back for a chunk, nor for a tile but in TF32.
PLANS = {
    "bf16": (
        Plan(None, 64, 4, 2),
        Plan(64, 128, 8, 1, 3),
        Plan(64, 64, 4, 1, 3),
        Plan(16, 64, 4, 2, 2),
    ),
    "tf32": (
        Plan(None, 64, 8, 1),
        Plan(32, 64, 8, 1, 3),
        Plan(32, 64, 8, 1, 2),
        Plan(16, 64, 8, 1, 2),
    ),
    "interpreted": (Plan(16, 32, 4, 2, 2),),
}
MOST_KEPT = 128  # columns of z
OTHER_SHARED = 2048  # bytes
GAPS = 6144  # more, where matrix units read factors that lie with gaps


class Shape:
    """The layers that an element goes through, and what a program needs for them."""

    def __init__(self, before: Widths, after: Widths, dtype: torch.dtype, precision: str) -> None:
        self.before, self.after, self.dtype, self.precision = before, after, dtype, precision
        self.z = len(before) - 1
        self.layers = places_turned((*before, *after), self.z)

    def chunk(self, plan: Plan) -> int:
        D = self.layers[self.z][1]
        return D if plan.chunk is None else min(plan.chunk, D)

    def shared_bytes(self, plan: Plan) -> int:
        """Weights that are kept, chunks of the others, and a tile between layers."""
        kept = [into * out for into, out, *_ in self.layers]
        widest = max(max(layer[:2]) for layer in self.layers)
        passing = plan.tile * widest
        if plan.chunk is not None:
            chunk, (first, *_) = self.chunk(plan), self.layers[self.z]
            after = [out for _, out, *_ in self.layers[self.z + 1 :]]
            del kept[self.z : self.z + 2]
            # Where a tile is too small for the large matrix units, products wait for their factors.
            chunks = chunk * (plan.stages if plan.tile >= 64 else plan.stages - 1)
            of_z = chunks * (first + sum(after[:1])) + plan.tile * (first + chunk)
            passing = max(of_z, plan.tile * max(after, default=0))
        numbers = sum(kept) + passing
        return numbers * self.dtype.itemsize + OTHER_SHARED


@cache
def plan_for(shape: Shape, device: torch.device) -> Plan | None:
    """The first that has the memory."""
    room = shared_memory(device) - (0 if is_hopper(device) else GAPS)
    for plan in PLANS[shape.precision]:
        wide = plan.chunk is None and shape.chunk(plan) > MOST_KEPT
        if not wide and shape.shared_bytes(plan) <= room:
            return plan
    return None


_shape = cache(Shape)


def shape_of(block: BroadcastBlock, x: Sets) -> Shape:
    return _shape(block.element.widths, block.combined.widths, x.dtype, precision_of(x))
