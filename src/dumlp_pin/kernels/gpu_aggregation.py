"""The aggregation block in inference on a GPU: where its kernels apply, and their launch."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from dumlp_pin._layout import Sets
from dumlp_pin.kernels._triton import INTERPRETED
from dumlp_pin.kernels.device import precision_of, processors, shared_memory
from dumlp_pin.kernels.fold import fold_mlp
from dumlp_pin.kernels.pack import left_factors, pack, padded, places, size_of_pack
from dumlp_pin.kernels.prepared import prepared
from dumlp_pin.kernels.widths import are_as_wide
from dumlp_pin.sets import SetBatch

if TYPE_CHECKING:
    from dumlp_pin.blocks import MLP, AggregationBlock

Widths = tuple[int, ...]
WIDEST, LARGEST_PRODUCT = 256, 8192  # what the registers of a program hold
MERGED_SHARE, MERGED_PARTS = 128, 16


def why_not(block: AggregationBlock, x: Sets) -> str | None:
    """Why the kernels cannot take the place of the block; None if they can."""
    if len(block.branches) > 3:
        return f"the kernel multiplies 3 factors at most, not {len(block.branches)}"
    branches = cast("Iterable[MLP]", block.branches)
    if not all(are_as_wide(branch.linears, branch.widths) for branch in branches):
        return "a layer has other widths than its MLP gave it"
    return _why_not_shape(shape_of(block, x), x.device)


@cache  # since it is asked on every call
def _why_not_shape(shape: Shape, device: torch.device) -> str | None:
    widest = max(map(max, shape.widths))
    if padded(widest) > WIDEST:
        return f"a layer is wider than the {WIDEST} that the kernel keeps in registers: {widest}"
    if shape.numbers > LARGEST_PRODUCT:
        return f"the feature has more than {LARGEST_PRODUCT} numbers"
    if plan_for(shape, device) is None:
        return "the weights need more than a multiprocessor's memory"
    return None


def aggregate(block: AggregationBlock, x: Sets, mask: Tensor | None = None) -> Tensor:
    """(B, out_features), as the block gives it in eval mode."""
    rows = (x.rows if isinstance(x, SetBatch) else x.flatten(0, 1)).contiguous()
    B = x.num_sets if isinstance(x, SetBatch) else x.shape[0]
    T = rows.shape[0]
    # Some program writes the feature of a set with elements, none that of an empty one.
    empty = T == 0 or isinstance(x, SetBatch)
    y = (rows.new_zeros if empty else rows.new_empty)(B, block.out_features)
    if T > 0:
        with torch.cuda.device_of(rows):
            _launch(block, rows, x, mask, y)
    return y


def _launch(block: AggregationBlock, rows: Tensor, x: Sets, mask: Tensor | None, y: Tensor) -> None:
    kernels: Any = importlib.import_module("dumlp_pin.kernels.triton_aggregation")
    shape = shape_of(block, rows)
    plan = cast(Plan, plan_for(shape, rows.device))
    T, numbers = rows.shape[0], shape.numbers
    rows_each = plan.tile * math.ceil(T / plan.programs(rows.device, shape) / plan.tile)
    P = math.ceil(T / rows_each)
    offsets, N = (x.offsets, 0) if isinstance(x, SetBatch) else (None, x.shape[1])
    keep = None if mask is None else mask.reshape(-1)
    parts = torch.empty(2 * P, 2 * sum(shape.padded) + numbers, device=rows.device)
    begun = torch.empty(P, dtype=torch.int32, device=rows.device)
    weights = prepared(block, shape.precision, lambda: _packed(block, shape.precision))
    common = {
        "WIDTHS": shape.out,
        "PADDED": shape.padded,
        "ACTIVATIONS": block.activations,
        "PRECISION": shape.precision,
    }
    kernels.aggregate_rows[(P,)](
        rows, keep, offsets, weights, y, parts, begun, T, len(y), N, rows_each, block.scale,
        F=rows.shape[1], BRANCHES=shape.branches, LEFT=shape.left,
        TILE=plan.tile, **common, **plan.options(),
    )  # fmt: skip
    if P > 1:
        share = min(MERGED_SHARE, numbers)
        kernels.merge_parts[(P, numbers // share)](
            parts, begun, offsets, y, N, rows_each, block.scale,
            SHARE=share, PARTS=MERGED_PARTS, **common,
        )  # fmt: skip


def _packed(block: AggregationBlock, precision: str) -> Tensor:
    branches = [fold_mlp(cast("MLP", branch)) for branch in block.branches]
    return pack(branches, next(block.parameters()), precision)


class Plan(NamedTuple):
    """What a program is given."""

    tile: int  # elements at a time
    warps: int
    together: int  # programs on a multiprocessor, if its memory is enough for them
    registers: int = 255  # of a thread

    def options(self) -> dict[str, Any]:
        return {"num_warps": self.warps, "num_stages": 1, "maxnreg": self.registers}

    def programs(self, device: torch.device, shape: Shape) -> int:
        """How many run at the same time."""
        if INTERPRETED:
            return 4
        together = min(self.together, shared_memory(device) // shape.shared_bytes(self.tile))
        return processors(device) * together


# For each precision what was fastest on an H200, then what is left for wider blocks.
PLANS = {
    "bf16": (Plan(64, 4, 3, 168), Plan(64, 4, 2)),
    "tf32": (Plan(128, 8, 1), Plan(64, 4, 2)),
    "tf32x3": (Plan(64, 4, 1),),
    "interpreted": (Plan(64, 4, 1),),
}


class Shape:
    """The widths of a block's branches, the input's first, and what a program needs for them."""

    def __init__(self, widths: tuple[Widths, ...], dtype: torch.dtype, precision: str) -> None:
        self.widths, self.dtype, self.precision = widths, dtype, precision
        self.out = tuple(branch[-1] for branch in widths)
        self.padded = tuple(map(padded, self.out))
        self.numbers, self.left = math.prod(self.padded), left_factors(self.padded)
        self.widest = max(padded(width) for branch in widths for width in branch)
        self.branches, self.weights = places(widths), size_of_pack(widths)

    def shared_bytes(self, tile: int) -> int:
        """Weights, a tile of so many elements, and the two sides of the product."""
        sides = math.prod(self.padded[: self.left]) + math.prod(self.padded[self.left :])
        copies = 2 if self.precision == "tf32x3" else 1  # each number in two parts
        numbers = copies * (self.weights + tile * sides) + tile * padded(self.widths[0][0])
        return numbers * self.dtype.itemsize

    def held(self, tile: int) -> int:
        """Numbers in registers at the same time: the layer at work, the masses, the product."""
        return tile * (self.widest + sum(self.padded)) + self.numbers


@cache
def plan_for(shape: Shape, device: torch.device) -> Plan | None:
    """The first plan with registers for all it holds; else the last; None without the memory."""
    room = shared_memory(device)
    plans = [plan for plan in PLANS[shape.precision] if shape.shared_bytes(plan.tile) <= room]
    for plan in plans:
        # A third of the registers is for addresses and for numbers on their way.
        if shape.held(plan.tile) <= 32 * plan.warps * plan.registers * 2 / 3:
            return plan
    return plans[-1] if plans else None


_shape = cache(Shape)


def shape_of(block: AggregationBlock, x: Sets) -> Shape:
    widths = tuple(cast("MLP", branch).widths for branch in block.branches)
    return _shape(widths, x.dtype, precision_of(x))
