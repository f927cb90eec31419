"""The two ways sets lie in memory, and the few operations over a set that depend on it.

Everything in `functional` is written once, on top of these.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from dumlp_pin.sets import SetBatch, check_mask

Sets = Tensor | SetBatch
SetsT = TypeVar("SetsT", Tensor, SetBatch)


class Padded:
    """Values (B, N, F); `mask` (B, N) says which elements are real, None that all are."""

    def __init__(self, mask: Tensor | None) -> None:
        self.mask = mask

    def wrap(self, values: Tensor) -> Any:
        return values

    def fill(self, values: Tensor, with_value: float) -> Tensor:
        """What stands in the padding is replaced, so that it never matters."""
        if self.mask is None:
            return values
        return values.masked_fill(~self.mask[:, :, None], with_value)

    def total(self, values: Tensor) -> Tensor:
        """(B, F): the sum over each set."""
        return self.fill(values, 0).sum(1)

    def peak(self, values: Tensor) -> Tensor:
        """(B, F): the largest over each set, -inf of an empty one."""
        if values.shape[1] == 0:
            return values.new_full((values.shape[0], values.shape[2]), -torch.inf)
        return self.fill(values, -torch.inf).amax(1)

    def spread(self, per_set: Tensor) -> Tensor:
        """What belongs to a set (B, F), in a shape that broadcasts over its elements."""
        return per_set[:, None]

    def to_blocks(self, values: Tensor) -> Tensor:
        """(M, K, F): at most K elements of one set a block, zero where there is none."""
        return self.fill(values, 0)

    def from_blocks(self, blocks: Tensor) -> Tensor:
        return blocks

    def block_total(self, per_block: Tensor) -> Tensor:
        """(M, ...) -> (B, ...): the sum over the blocks of each set."""
        return per_block

    def block_spread(self, per_set: Tensor) -> Tensor:
        """(B, ...) -> (M, ...)."""
        return per_set


class Packed:
    """Values (T, F), the rows of a SetBatch."""

    # A set is cut into blocks so that matrix products run over sets of all sizes at once.
    # T // K + B blocks always suffice; with K no larger than the mean size they hold at most 2 T
    # rows. So there is no look at the sizes, no wait for the device, and no set pays for the
    # largest one.
    LARGEST_BLOCK = 128

    def __init__(self, batch: SetBatch) -> None:
        self.batch = batch
        T, B = batch.rows.shape[0], batch.num_sets
        self.block_size = max(1, min(self.LARGEST_BLOCK, T // max(1, B)))
        self.num_blocks = T // self.block_size + B

    def wrap(self, values: Tensor) -> Any:
        return self.batch.with_rows(values)

    def fill(self, values: Tensor, with_value: float) -> Tensor:
        return values

    def total(self, values: Tensor) -> Tensor:
        zeros = values.new_zeros(self.batch.num_sets, *values.shape[1:])
        return zeros.index_add(0, self.batch.set_index, values)

    def peak(self, values: Tensor) -> Tensor:
        lowest = values.new_full((self.batch.num_sets, values.shape[1]), -torch.inf)
        index = self.batch.set_index[:, None].expand_as(values)
        return lowest.scatter_reduce(0, index, values, "amax")

    def spread(self, per_set: Tensor) -> Tensor:
        return per_set[self.batch.set_index]

    def to_blocks(self, values: Tensor) -> Tensor:
        blocks = values.new_zeros(self.num_blocks * self.block_size, values.shape[1])
        blocks = blocks.index_copy(0, self._slot(), values)
        return blocks.view(self.num_blocks, self.block_size, values.shape[1])

    def from_blocks(self, blocks: Tensor) -> Tensor:
        return blocks.flatten(0, 1)[self._slot()]

    def block_total(self, per_block: Tensor) -> Tensor:
        zeros = per_block.new_zeros(self.batch.num_sets, *per_block.shape[1:])
        return zeros.index_add(0, self._block_owner(), per_block)

    def block_spread(self, per_set: Tensor) -> Tensor:
        return per_set[self._block_owner()]

    def _blocks_until(self) -> Tensor:
        """(B,) how many blocks the sets up to and with each one take."""
        return ((self.batch.sizes + self.block_size - 1) // self.block_size).cumsum(0)

    def _slot(self) -> Tensor:
        """(T,) where each row stands among the rows of all blocks."""
        sizes, offsets = self.batch.sizes, self.batch.offsets
        blocks = (sizes + self.block_size - 1) // self.block_size
        start = (self._blocks_until() - blocks) * self.block_size - offsets[:-1]
        rows = torch.arange(self.batch.rows.shape[0], device=self.batch.device)
        return rows + self.spread(start)

    def _block_owner(self) -> Tensor:
        """(M,) the set of each block; the blocks left over are empty and go to the last set."""
        blocks = torch.arange(self.num_blocks, device=self.batch.device)
        owner = torch.searchsorted(self._blocks_until(), blocks, right=True)
        return owner.clamp(max=self.batch.num_sets - 1)


def open_sets(x: Sets, mask: Tensor | None = None) -> tuple[Tensor, Padded | Packed]:
    """The values of sets in any of the three forms, and how they lie."""
    if isinstance(x, SetBatch):
        if mask is not None:
            raise TypeError("a SetBatch knows its sizes, it takes no mask")
        return x.rows, Packed(x)
    check_sets(x)
    if mask is not None:
        check_mask(mask, x)
    return x, Padded(mask)


def check_sets(x: Any) -> None:
    """In one of the three forms; what NumPy holds, or a single set, is in none."""
    if isinstance(x, SetBatch):
        return
    if not isinstance(x, Tensor):
        raise TypeError(f"sets are a tensor (B, N, F) or a SetBatch, got {type(x).__name__}")
    if x.ndim != 3:
        raise ValueError(f"sets are (B, N, F) or a SetBatch, got shape {tuple(x.shape)}")


def without_padding(x: SetsT, mask: Tensor | None) -> SetsT:
    """Zero where no element is, so that not even NaN leaves the padding, by a gradient neither."""
    values, sets = open_sets(x, mask)
    return sets.wrap(sets.fill(values, 0))
