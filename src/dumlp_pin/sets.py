"""SetBatch: sets of different sizes as the rows of one tensor, and where each set begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import _pytree as _fx_pytree
from torch.utils import _pytree
from torch.utils.data import default_collate


class SetBatch:
    """B sets of any sizes as rows (T, F) and offsets (B + 1).

    Set b is `rows[offsets[b]:offsets[b + 1]]`.
    An element may be an array itself, an image say; rows are then (T, ...).

    `validate=True` is for data that enters from outside: it also checks what needs a look at every
    number (finite features) and, on an accelerator, what needs a copy back to the host (offsets).

    >>> batch = SetBatch.from_list([torch.ones(2, 3), torch.ones(5, 3)])
    >>> batch
    SetBatch(2 sets, 7 rows, element shape (3,), torch.float32, cpu)
    >>> batch.sizes.tolist()
    [2, 5]
    >>> padded, mask = batch.to_padded()
    >>> padded.shape, mask.sum(1).tolist()
    (torch.Size([2, 5, 3]), [2, 5])
    """

    def __init__(self, rows: Tensor, offsets: Tensor, *, validate: bool = False) -> None:
        if rows.ndim < 2:
            raise ValueError(f"rows of a SetBatch are (T, F), got shape {tuple(rows.shape)}")
        if offsets.dtype != torch.int64:
            raise TypeError(f"offsets of a SetBatch are int64, got {offsets.dtype}")
        if offsets.ndim != 1 or len(offsets) == 0:
            raise ValueError(
                f"offsets of a SetBatch are (B + 1,), got shape {tuple(offsets.shape)}"
            )
        if offsets.device != rows.device:
            raise ValueError(f"rows are on {rows.device}, offsets on {offsets.device}")
        if validate or offsets.device.type == "cpu":
            _check_offsets(offsets, len(rows))
        if validate:
            _check_finite(rows)
        self.rows, self.offsets = rows, offsets
        self._set_index: Tensor | None = None

    @classmethod
    def _trusted(cls, rows: Tensor, offsets: Tensor, set_index: Tensor | None = None) -> SetBatch:
        """Skip the checks: for offsets that were checked before, and for tracers."""
        batch = object.__new__(cls)
        batch.rows, batch.offsets, batch._set_index = rows, offsets, set_index
        return batch

    @classmethod
    def from_list(cls, sets: Sequence[Tensor], *, validate: bool = False) -> SetBatch:
        """From one (N_b, F) tensor a set."""
        if not sets:
            raise ValueError("from_list needs at least one set, got an empty list")
        for index, one in enumerate(sets):
            if not isinstance(one, Tensor):
                kind = type(one).__name__
                raise TypeError(f"set {index} is no tensor but {kind}: torch.as_tensor makes one")
        shapes = {tuple(s.shape[1:]) for s in sets}
        if len(shapes) != 1:
            raise ValueError(f"every set needs the same element shape, got {sorted(shapes)}")
        sizes = torch.tensor([0] + [len(s) for s in sets])
        offsets = sizes.cumsum(0).to(sets[0].device)
        return cls(torch.cat(list(sets)), offsets, validate=validate)

    @classmethod
    def from_padded(cls, x: Tensor, mask: Tensor | None = None) -> SetBatch:
        """From x (B, N, F) and mask (B, N), True where an element is real."""
        if x.ndim < 3:
            raise ValueError(f"padded sets are (B, N, F), got shape {tuple(x.shape)}")
        if mask is None:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        check_mask(mask, x)
        offsets = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
        return cls._trusted(x[mask], offsets)

    @classmethod
    def collate(cls, samples: Sequence[Any]) -> Any:
        """For `DataLoader(collate_fn=SetBatch.collate)`: samples are sets (N_b, F), or tuples that
        begin with one; what follows the set is collated as PyTorch does.

        >>> sets, labels = SetBatch.collate([(torch.ones(2, 3), 0), (torch.ones(5, 3), 1)])
        >>> len(sets), labels
        (2, tensor([0, 1]))
        """
        if isinstance(samples[0], Tensor):
            return cls.from_list(samples)
        sets, *rest = zip(*samples, strict=True)
        return (cls.from_list(sets), *(default_collate(list(column)) for column in rest))

    def to_padded(self, size: int | None = None) -> tuple[Tensor, Tensor]:
        """To x (B, N, F), zero where there is no element, and mask (B, N).

        N is the largest set's size, or `size`, which saves the look at the sizes.
        """
        sizes = self.sizes
        if size is None:
            size = int(sizes.max()) if len(self) else 0
        mask = torch.arange(size, device=self.device) < sizes[:, None]
        rows = torch.arange(self.rows.shape[0], device=self.device)
        position = rows - self.offsets[self.set_index]
        x = self.rows.new_zeros(self.num_sets, size, *self.rows.shape[1:])
        return x.index_put((self.set_index, position), self.rows), mask

    def to_list(self) -> list[Tensor]:
        return list(self.rows.split(self.sizes.tolist()))

    def with_rows(self, rows: Tensor) -> SetBatch:
        """The same sets with other features for their elements."""
        if rows.shape[0] != self.rows.shape[0]:
            raise ValueError(f"these sets have {self.rows.shape[0]} rows, got {rows.shape[0]}")
        return SetBatch._trusted(rows, self.offsets, self.set_index)

    def to(self, *args: Any, **kwargs: Any) -> SetBatch:
        """As `Tensor.to`; a dtype is for the rows, offsets stay int64."""
        rows = self.rows.to(*args, **kwargs)
        non_blocking = kwargs.get("non_blocking", False)
        return SetBatch._trusted(rows, self.offsets.to(rows.device, non_blocking=non_blocking))

    def pin_memory(self) -> SetBatch:
        return SetBatch._trusted(self.rows.pin_memory(), self.offsets.pin_memory())

    @property
    def sizes(self) -> Tensor:
        """(B,) how many elements each set has."""
        return self.offsets.diff()

    @property
    def set_index(self) -> Tensor:
        """(T,) which set each row belongs to; made once and handed on by `with_rows`."""
        if self._set_index is None:
            sets = torch.arange(self.num_sets, device=self.device)
            self._set_index = sets.repeat_interleave(self.sizes, output_size=self.rows.shape[0])
        return self._set_index

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    @property
    def num_sets(self) -> int:
        """B. In exported programs this may stay a symbol, which `len()` cannot."""
        return self.offsets.shape[0] - 1

    def __len__(self) -> int:
        return self.num_sets

    def __repr__(self) -> str:
        return (
            f"SetBatch({len(self)} sets, {len(self.rows)} rows, "
            f"element shape {tuple(self.rows.shape[1:])}, {self.dtype}, {self.device})"
        )


def check_mask(mask: Tensor, x: Tensor) -> None:
    """`mask` says of each element of x (B, N, ...) whether it is real."""
    if mask.dtype != torch.bool:
        raise TypeError(f"a mask is bool, True where an element is real; got {mask.dtype}")
    if mask.shape != x.shape[:2]:
        raise ValueError(
            f"a mask for sets of shape {tuple(x.shape)} is {tuple(x.shape[:2])}, "
            f"got {tuple(mask.shape)}"
        )


def _check_offsets(offsets: Tensor, rows: int) -> None:
    first, last = int(offsets[0]), int(offsets[-1])
    if first != 0 or last != rows:
        raise ValueError(f"offsets run from 0 to the number of rows, {rows}; got {first} to {last}")
    if bool((offsets.diff() < 0).any()):
        raise ValueError(f"offsets never decrease, got {offsets.tolist()}")


def _check_finite(rows: Tensor) -> None:
    bad = ~rows.flatten(1).isfinite().all(1)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise ValueError(
            f"{int(bad.sum())} of {len(rows)} elements have features that are not finite, "
            f"the first is row {first}"
        )


def _leaves(batch: SetBatch) -> tuple[list[Any], Any]:
    return [batch.rows, batch.offsets], None


def _named_leaves(batch: SetBatch) -> tuple[list[tuple[Any, Any]], Any]:
    names = _pytree.GetAttrKey("rows"), _pytree.GetAttrKey("offsets")
    return list(zip(names, _leaves(batch)[0], strict=True)), None


# torch.export and torch.compile look inside a SetBatch through this.
_pytree.register_pytree_node(
    SetBatch,
    _leaves,
    lambda leaves, _: SetBatch._trusted(*leaves),
    serialized_type_name="dumlp_pin.SetBatch",
    flatten_with_keys_fn=_named_leaves,
)
_fx_pytree.register_pytree_flatten_spec(SetBatch, lambda batch, _: _leaves(batch)[0])
