"""Sets without end: the feature of a set that arrives in chunks, in constant memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from dumlp_pin._parts import Sums
from dumlp_pin.kernels import cpu
from dumlp_pin.kernels.choose import choose

if TYPE_CHECKING:
    from dumlp_pin.blocks import AggregationBlock
    from dumlp_pin.models.networks import PinClassifier

# Rows that go through the branches at once: on a processor few enough for its caches, elsewhere
# enough to keep an accelerator busy.
ROWS_ON_CPU, ROWS_ELSEWHERE = 4096, 65536


class AggregationState:
    """All there is to know about the elements of one set seen so far, however many they are.

    `block.stream()` makes an empty one; `update` takes chunks (n, F), `merge` what another state
    has seen, and `result` is what the block gives for the set of all these elements. The order does
    not matter, nor do the cuts. The branches run in the type of the block, sums over elements are
    kept in float64. Nothing here has a gradient.

    >>> from dumlp_pin import AggregationBlock
    >>> block = AggregationBlock(3, [(16, 4), (16, 4)], activations=("softmax", None)).eval()
    >>> x = torch.randn(1000, 3)
    >>> state = block.stream()
    >>> for chunk in x.split(300):
    ...     state.update(chunk)
    >>> state
    AggregationState(1,000 elements)
    >>> torch.allclose(state.result(), block(x[None])[0], atol=1e-4)
    True
    """

    def __init__(self, block: AggregationBlock, head: nn.Module | None = None) -> None:
        """With a `head`, a result is what it makes of the feature: a classifier's logits."""
        self._block, self._head = block, head
        self._clear()

    def _clear(self) -> None:
        nothing = torch.empty(0, self._block.in_features, dtype=self._like.dtype)
        self._seen = self._forgotten = self._sums_of(nothing.to(self._like.device))
        self.count = 0

    def update(self, chunk: Tensor | np.ndarray) -> None:
        """Add elements (n, F): a tensor, an array, or a memory map of any length.

        They go through the branches a few rows at a time, in the block's type, on its device.
        """
        self._expect_elements(chunk)
        self._seen = self._added(self._seen, chunk)
        self.count += len(chunk)

    def forget(self, chunk: Tensor | np.ndarray) -> None:
        """Take elements back out that were added before, here or in a state merged into this.

        What they added is subtracted, so what is left must not drown in the rounding of what is
        gone: if a softmax or squash would keep less than sqrt(eps) of everything that it was ever
        given and took back, eps that of the block's type, this is refused and nothing changes. That
        happens when the element that dominated a softmax goes, and after some thousand turnovers of
        a sliding window in float32. The sums of other activations are differences of float64
        numbers and are not watched. That the elements were seen is for the caller to know.
        """
        self._expect_elements(chunk)
        if len(chunk) > self.count:
            raise ValueError(f"{len(chunk)} elements to forget, but only {self.count} are held")
        if len(chunk) == self.count:
            self._clear()
            return
        forgotten = self._added(self._forgotten, chunk)
        kept = self._seen.minus(forgotten).mass
        handled = self._seen.plus(forgotten).mass
        share = torch.where(handled > 0, kept / handled, 1).min().item()
        least = torch.finfo(self._like.dtype).eps ** 0.5
        if share < least:
            raise ValueError(
                f"cannot forget: a softmax or squash would keep {share:.1e} of what went through "
                f"it, and below {least:.1e} rounding decides; stream what remains into a new state"
            )
        self._forgotten = forgotten
        self.count -= len(chunk)

    def merge(self, other: AggregationState) -> None:
        """Add all that another state of the same block has seen; the other one stays as it is."""
        if other._block is not self._block and _digest(other._block) != _digest(self._block):
            raise ValueError("cannot merge: these states are of blocks with different weights")
        self._seen = self._seen.plus(other._seen)
        self._forgotten = self._forgotten.plus(other._forgotten)
        self.count += other.count

    @torch.no_grad()
    def result(self) -> Tensor:
        """(out_features,), or the (num_classes,) logits; of no element what an empty set gives."""
        self._expect_eval()
        sums = self._seen.minus(self._forgotten)
        y = sums.finish(self._block.activations).flatten(1) * self._block.scale
        y = y.to(self._like.dtype)
        return (y if self._head is None else self._head(y))[0]

    def to_bytes(self) -> bytes:
        """As safetensors, for `from_bytes` with the same block in another place."""
        tensors = {
            "count": torch.tensor(self.count),
            "block": torch.tensor(list(_digest(self._block)), dtype=torch.uint8),
        }
        for group, sums in (("seen", self._seen), ("forgotten", self._forgotten)):
            for name, value in vars(sums).items():
                tensors[f"{group}.{name}"] = value.clone()  # safetensors takes no shared memory
        return save(tensors)

    @classmethod
    def from_bytes(cls, source: AggregationBlock | PinClassifier, data: bytes) -> AggregationState:
        """What `to_bytes` of a state of the same block, or of a classifier around it, has left."""
        state = source.stream()
        try:
            tensors = load(data)
            made_by = bytes(tensors["block"].tolist())
            seen, forgotten = (
                Sums(
                    *(
                        tensors[f"{group}.{name}"].to(state._like.device)
                        for name in vars(state._seen)
                    )
                )
                for group in ("seen", "forgotten")
            )
            count = int(tensors["count"])
        except (SafetensorError, KeyError) as error:
            raise ValueError(f"not the bytes of a state: {error}") from error
        if made_by != _digest(state._block):
            raise ValueError("these bytes are of a state of another block, or of other weights")
        state._seen, state._forgotten, state.count = seen, forgotten, count
        return state

    def _added(self, sums: Sums, chunk: Tensor | np.ndarray) -> Sums:
        size = ROWS_ON_CPU if self._like.device.type == "cpu" else ROWS_ELSEWHERE
        for start in range(0, len(chunk), size):
            rows = chunk[start : start + size]
            if not isinstance(rows, Tensor):
                rows = torch.from_numpy(np.array(rows, dtype=np.float64))
            sums = sums.plus(self._sums_of(rows.to(self._like)))
        return sums

    @torch.no_grad()
    def _sums_of(self, rows: Tensor) -> Sums:
        self._expect_eval()
        if choose(self._block, rows[None]).name == "cpu":
            factors = cpu.factors(self._block, rows)
        else:
            factors = [branch(rows) for branch in self._block.branches]
        return Sums.of(self._block.activations, [factor[None].double() for factor in factors])

    @property
    def _like(self) -> Tensor:
        """A tensor of the block's type, on its device."""
        return next(self._block.parameters())

    def _expect_eval(self) -> None:
        parts = [self._block] if self._head is None else [self._block, self._head]
        if any(module.training for part in parts for module in part.modules()):
            raise ValueError(
                "batch norm in training needs all elements at once: call eval() before streaming"
            )

    def _expect_elements(self, chunk: Tensor | np.ndarray) -> None:
        shape = tuple(getattr(chunk, "shape", ()))
        if len(shape) != 2 or shape[1] != self._block.in_features:
            raise ValueError(
                f"a chunk is a tensor or array (n, {self._block.in_features}), got shape {shape}"
            )

    def __repr__(self) -> str:
        return f"AggregationState({self.count:,} elements)"


def read_chunks(path: str | Path, size: int = 65536) -> Iterator[np.ndarray]:
    """The rows of a .npy file, `size` at a time, for files of any length.

    Each chunk has a memory map of its own: the pages that were read through one stay resident for
    as long as it lives.
    """
    for start in range(0, len(np.load(path, mmap_mode="r")), size):
        yield np.load(path, mmap_mode="r")[start : start + size]


def _digest(block: AggregationBlock) -> bytes:
    """Equal for blocks that compute the same: the same activations, scale and weights."""
    digest = hashlib.sha256(repr((block.activations, float(block.scale))).encode())
    for name, value in sorted(block.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.cpu().flatten().view(torch.uint8).numpy())
    return digest.digest()
