"""Inference on a processor: folded MLPs on as many elements at a time as its caches hold.

Between the layers of a block every element is a few hundred numbers. For a whole batch they would
go to memory and back once for each operation; here some sets go through all layers before the next
ones begin. A set that is too large goes through in parts, whose sums are merged. So memory is
bounded, and neither the number nor the size of sets matters much to the rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from dumlp_pin._layout import Sets, SetsT
from dumlp_pin._parts import Sums
from dumlp_pin.functional import ACTIVATIONS, dot_product
from dumlp_pin.kernels.fold import fold, fold_mlp, scale_and_shift
from dumlp_pin.kernels.linear import Layers, pack, through
from dumlp_pin.kernels.prepared import prepared
from dumlp_pin.kernels.runs import runs, side_by_side
from dumlp_pin.sets import SetBatch

if TYPE_CHECKING:
    from torch import nn

    from dumlp_pin.blocks import MLP, AggregationBlock, BroadcastBlock

# Elements at a time, for each thread. More would not fit a core's share of the caches, with fewer
# the calls of PyTorch's operations show.
ROWS = {torch.float32: 4096, torch.bfloat16: 8192}


def why_not(block: nn.Module, x: Sets) -> str | None:
    """Why this cannot take the place of the block in inference; None if it can."""
    if x.device.type != "cpu":
        return f"the input is on {x.device.type}"
    if getattr(block, "cross", None) is not None:
        return "the cross term has no faster way"
    return None


def aggregate(block: AggregationBlock, x: Sets, mask: Tensor | None = None) -> Tensor:
    """(B, out_features), as the block gives it in eval mode."""
    if mask is not None:
        x = SetBatch.from_padded(cast(Tensor, x), mask)
    if isinstance(x, SetBatch):
        rows, sizes = x.rows, x.sizes.tolist()
    else:
        rows, sizes = x.flatten(0, 1), [x.shape[1]] * x.shape[0]
    names, branches = block.activations, _branches(block)
    most = ROWS[x.dtype] * torch.get_num_threads()
    offsets = list(accumulate(sizes, initial=0))
    y = torch.zeros(len(sizes), block.out_features, dtype=x.dtype)
    for first, last in runs(sizes, most):
        run = rows[offsets[first] : offsets[last]]
        if len(run) > most:
            y[first] = in_parts(names, branches, run, most).flatten()
            continue
        outputs = [through(layers, run) for layers in branches]
        for sets, together in side_by_side(names, outputs, sizes[first:last]):
            values = [ACTIVATIONS[name](x) for name, x in zip(names, together, strict=True)]
            y[first:last][sets] = dot_product(values).flatten(1)
    return y.mul_(block.scale)


def factors(block: AggregationBlock, x: Tensor) -> list[Tensor]:
    """What the branches give for elements x (n, F): (n, c_j) each."""
    return [through(layers, x) for layers in _branches(block)]


def _branches(block: AggregationBlock) -> list[Layers]:
    def packed() -> list[Layers]:
        dtype = next(block.parameters()).dtype
        return [pack(fold_mlp(cast("MLP", branch)), dtype) for branch in block.branches]

    return prepared(block, "cpu", packed)


def in_parts(names: Sequence[str], branches: Sequence[Layers], x: Tensor, most: int) -> Tensor:
    """(1, c_1, ..., c_n) of one set x (N, F) of any size, its sums kept in float64."""
    sums = None
    for part in x.tensor_split(-(-len(x) // most)):
        # The sums of a part are rounded to their type, so that is float32 at least.
        outputs = [through(layers, part)[None].float() for layers in branches]
        of_part = Sums.of(names, outputs)
        wide = Sums(of_part.shift.double(), of_part.mass.double(), of_part.product.double())
        sums = wide if sums is None else sums.plus(wide)
    assert sums is not None
    return sums.finish(names)


class Told(NamedTuple):
    """A broadcast block without its norms: what it does to elements, to the set's feature, both."""

    element: Layers
    from_set: Layers
    combined: Layers


def broadcast(block: BroadcastBlock, x: SetsT, y: Tensor, mask: Tensor | None = None) -> SetsT:
    """(B, N, out_features), or a SetBatch, as the block gives it in eval mode."""
    if isinstance(x, SetBatch):
        rows, owner = x.rows, x.set_index
    elif mask is not None:
        rows, owner = x[mask], mask.nonzero()[:, 0]
    else:
        rows, owner = x.flatten(0, 1), torch.arange(len(x)).repeat_interleave(x.shape[1])
    told = prepared(block, "cpu", lambda: _told(block))
    of_set = through(told.from_set, y)
    z = torch.empty(len(rows), block.out_features, dtype=rows.dtype)
    most = ROWS[x.dtype] * torch.get_num_threads()
    for run, sets, into in zip(rows.split(most), owner.split(most), z.split(most), strict=True):
        both = through(told.element, run).add_(of_set.index_select(0, sets)).relu_()
        into.copy_(through(told.combined, both))
    if isinstance(x, SetBatch):
        return x.with_rows(z)
    if mask is None:
        return z.view(*x.shape[:2], block.out_features)
    padded = torch.zeros(*x.shape[:2], block.out_features, dtype=z.dtype)
    padded[mask] = z
    return padded


def _told(block: BroadcastBlock) -> Told:
    dtype = block.from_set.weight.dtype
    mlps = (block.element, block.set, block.combined)
    element, of_set, combined = (pack(fold_mlp(mlp), dtype, last_relu=True) for mlp in mlps)
    weight = block.from_set.weight
    if block.norm is not None:
        weight = weight * scale_and_shift(block.norm)[0][:, None]
    nothing = weight.new_zeros(len(weight))
    element += pack([fold(block.from_element, block.norm)], dtype)
    of_set += pack([(weight, nothing)], dtype)
    return Told(element, of_set, combined)
