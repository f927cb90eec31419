"""Training of a broadcast block: all that it does to elements, as one MLP in the kernels.

Its layers are those of the element MLP, the one to which each set adds an offset W_y y of its own,
and those of the combined MLP. The MLP on the set's feature stays as it is: it has few rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from dumlp_pin._layout import Sets, SetsT
from dumlp_pin.kernels.training import Chain, stacked_in_training, why_not_in_training
from dumlp_pin.kernels.training_ops import Offset
from dumlp_pin.sets import SetBatch

if TYPE_CHECKING:
    from dumlp_pin.blocks import BroadcastBlock


def why_not_broadcast(block: BroadcastBlock, x: Sets, mask: Tensor | None = None) -> str | None:
    """Why `broadcast_in_training` cannot take the place of the plain way; None if it can."""
    if not block.training:
        return "the block is not in training"
    if block.cross is not None:
        return "no kernel has the cross term"
    if block.norm is None:
        return "the block has no batch norm"
    values = x.rows if isinstance(x, SetBatch) else x
    if values.ndim != (2 if isinstance(x, SetBatch) else 3):
        return f"sets of shape {tuple(values.shape)} do not fit"
    for part in (block.from_element, block.from_set):
        if type(part) is not nn.Linear:
            return f"a {type(part).__name__} is in the block"
    if block.from_set.weight.dtype != block.from_element.weight.dtype:
        return "weights are of several types"
    return why_not_in_training(_chain(block), values, mask)


def broadcast_in_training(block: BroadcastBlock, x: SetsT, y: Tensor) -> SetsT:
    """What the block makes of elements, where `y` (B, d_y) is behind its MLP on the set."""
    values, starts = (x.rows, x.offsets) if isinstance(x, SetBatch) else (x, None)
    offset = Offset(block.from_set(y), starts)
    layers, at = [_chain(block)], len(block.element.linears)
    z = stacked_in_training(layers, values, relu=True, offset=offset, offset_at=at).squeeze(0)
    return cast(Any, x.with_rows(z) if isinstance(x, SetBatch) else z)


def _chain(block: BroadcastBlock) -> Chain:
    element, combined = block.element, block.combined
    assert block.norm is not None
    return Chain(
        element.widths + combined.widths,
        [*element.linears, block.from_element, *combined.linears],
        [*element.norms, block.norm, *combined.norms],
        [element, block.from_element, block.norm, combined],
    )
