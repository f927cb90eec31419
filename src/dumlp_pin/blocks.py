"""The two blocks of the paper, and the MLP they are made of.

A set goes in as elements x; `AggregationBlock` makes one feature y of the whole set, and
`BroadcastBlock` carries y back to every element. Both take sets in three forms and treat them
alike: (B, N, F), the same with `mask=` (B, N) that is True where an element is real, or a
`SetBatch`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from dumlp_pin._errors import nearest
from dumlp_pin._layout import SetsT, check_sets, open_sets, without_padding
from dumlp_pin.batchnorm import BatchNorm
from dumlp_pin.functional import ACTIVATIONS, dot_product
from dumlp_pin.kernels.choose import kernel_for
from dumlp_pin.kernels.fuse import Fusible
from dumlp_pin.kernels.training import (
    mlps_together,
    outputs_in_training,
    stacked_in_training,
    why_not_in_training,
)
from dumlp_pin.kernels.training_aggregation import aggregate_in_training, why_not_aggregation
from dumlp_pin.kernels.training_broadcast import broadcast_in_training, why_not_broadcast
from dumlp_pin.sets import SetBatch
from dumlp_pin.sharding import sharded_product, synchronise_norms
from dumlp_pin.streaming import AggregationState


class MLP(Fusible):
    """Linear, batch norm, ReLU for each layer; the last has no ReLU, and if `bare_last` no norm.

    `widths` has the input's width first: MLP((3, 32, 128)) has two layers, MLP((3,)) none.
    It runs on the last dimension of any tensor, or on the rows of a SetBatch.

    >>> MLP((3, 32, 128))(torch.rand(2, 5, 3)).shape
    torch.Size([2, 5, 128])
    """

    def __init__(self, widths: Sequence[int], *, bare_last: bool = False) -> None:
        super().__init__()
        self.widths = tuple(widths)
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"widths of an MLP are positive, the input's first; got {self.widths}")
        pairs = list(zip(self.widths, self.widths[1:], strict=False))
        self.linears = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)
        normed = pairs[:-1] if bare_last else pairs
        self.norms = nn.ModuleList(BatchNorm(after) for _, after in normed)

    def forward(self, x: SetsT, mask: Tensor | None = None) -> SetsT:
        if isinstance(x, SetBatch):
            if mask is not None:
                raise TypeError("a SetBatch knows its sizes, it takes no mask")
            return x.with_rows(self._on_last_dimension(x.rows))
        return self._on_last_dimension(x if mask is None else without_padding(x, mask), mask)

    def _on_last_dimension(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if x.shape[-1] != self.widths[0]:
            raise ValueError(
                f"expected {self.widths[0]} features, got {x.shape[-1]} "
                f"in an input of shape {tuple(x.shape)}"
            )
        if why_not_in_training(self, x, mask) is None:
            return outputs_in_training([self], x)[0]
        for layer, linear in enumerate(self.linears):
            x = linear(x)
            if layer < len(self.norms):
                x = self.norms[layer](x, mask)
            if layer < len(self.linears) - 1:
                x = F.relu(x)
        return x


class AggregationBlock(Fusible):
    """The feature of a whole set: MLP_1(x)^T MLP_2(x), each through its own activation first.

    `branches` has one tuple of layer widths a factor. Two factors are the paper's block; one is a
    sum over the set as in Deep Sets; n make the tensor of Theorem 2. `activations` has one name a
    factor: "softmax" and "squash" run over the set, "relu" and "elu" on each number, None does
    nothing; "squash_authors" is what the authors' code computes. An empty set gives zeros.

    With a `process_group` each of its processes holds some elements of each set, or none, and gets
    the feature of the whole; the losses of the processes count together, see docs/streaming.md.

    >>> block = AggregationBlock(6, [(32, 128, 32), (32, 128, 32)], activations=("softmax", None))
    >>> block(torch.rand(2, 1024, 6)).shape
    torch.Size([2, 1024])
    """

    def __init__(
        self,
        in_features: int,
        branches: Sequence[Sequence[int]],
        activations: Sequence[str | None],
        dropout: float = 0.0,
        scale: float = 1.0,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        if not branches or not all(branches):
            raise ValueError(f"branches are one tuple of widths a factor, got {branches}")
        if len(activations) != len(branches):
            raise ValueError(f"{len(branches)} branches need as many activations: {activations}")
        self.activations = tuple(name or "none" for name in activations)
        for name in self.activations:
            if name not in ACTIVATIONS:
                raise ValueError(f"unknown activation {name!r}{nearest(name, ACTIVATIONS)}")
        self.in_features = in_features
        self.out_features = math.prod(widths[-1] for widths in branches)
        self.branches = nn.ModuleList(MLP((in_features, *widths)) for widths in branches)
        self.dropout = nn.Dropout(dropout)
        self.scale = scale
        self.process_group = process_group
        if process_group is not None:
            synchronise_norms(self, process_group)

    def forward(self, x: SetsT, mask: Tensor | None = None) -> Tensor:
        check_sets(x)
        if (kernel := kernel_for(self, x, mask)) is not None:
            return kernel.aggregate(self, x, mask)
        y = self.dropout(self._product(x, mask).flatten(1))
        return y if self.scale == 1 else y * self.scale  # torch.compile multiplies by 1 too

    def _product(self, x: SetsT, mask: Tensor | None) -> Tensor:
        """(B, c_1, ..., c_n)"""
        if why_not_aggregation(self, x, mask) is None:
            return aggregate_in_training(self, x)
        factors = mlps_together(self.branches, x, mask)
        if self.process_group is not None:
            return sharded_product(self.activations, factors, mask, self.process_group)
        pairs = zip(self.activations, factors, strict=True)
        return dot_product([ACTIVATIONS[name](factor, mask) for name, factor in pairs], mask)

    def stream(self) -> AggregationState:
        """For one set that comes in chunks (n, F), of any number of elements."""
        return AggregationState(self)

    def extra_repr(self) -> str:
        return f"activations={self.activations}, scale={self.scale}"


class BroadcastBlock(Fusible):
    """Carries a set's feature y to its elements x: z = W_x x + W_y y + b, between MLPs.

    `element`, `set` and `combined` are the widths of the MLPs on x, on y and on z, the input's
    first; a single width means no MLP. `cross_term` adds the paper's bilinear term (W_xy x) y.

    >>> block = BroadcastBlock(element=(3, 32, 128), set=(16, 128), combined=(128, 64))
    >>> block(torch.rand(2, 5, 3), torch.rand(2, 16)).shape
    torch.Size([2, 5, 64])
    """

    def __init__(
        self,
        element: Sequence[int],
        set: Sequence[int],
        combined: Sequence[int],
        cross_term: bool = False,
    ) -> None:
        super().__init__()
        self.out_features = combined[-1]
        self.element, self.set, self.combined = MLP(element), MLP(set), MLP(combined)
        d_x, d_y, d_z = element[-1], set[-1], combined[0]
        self.from_element = nn.Linear(d_x, d_z)
        self.from_set = nn.Linear(d_y, d_z, bias=False)
        self.norm: BatchNorm | None = BatchNorm(d_z)
        self.cross: nn.Parameter | None = None
        if cross_term:
            bound = (d_x * d_y) ** -0.5
            self.cross = nn.Parameter(torch.empty(d_z, d_y, d_x).uniform_(-bound, bound))

    def forward(self, x: SetsT, y: Tensor, mask: Tensor | None = None) -> SetsT:
        check_sets(x)
        if (kernel := kernel_for(self, x, mask, y)) is not None:
            return kernel.broadcast(self, x, y, mask)
        num_sets = x.num_sets if isinstance(x, SetBatch) else x.shape[0]
        if y.shape[0] != num_sets:
            raise ValueError(f"{num_sets} sets need as many set features, got {y.shape[0]}")
        y = _relu_after(self.set, y)
        if why_not_broadcast(self, x, mask) is None:
            return broadcast_in_training(self, x, y)
        x = _relu_after(self.element, without_padding(x, mask), mask)
        values, sets = open_sets(x, mask)
        z = self.from_element(values) + sets.spread(self.from_set(y))
        if self.cross is not None:
            # (B, d_x, d_z): each set's own map of its elements
            maps = torch.einsum("kji,bj->bik", self.cross, y)
            blocks = sets.to_blocks(values) @ sets.block_spread(maps)
            z = z + sets.from_blocks(blocks)
        z = sets.wrap(F.relu(z if self.norm is None else self.norm(z, mask)))
        return without_padding(_relu_after(self.combined, z, mask), mask)


def _relu_after(mlp: MLP, x: SetsT, mask: Tensor | None = None) -> SetsT:
    """An MLP of a broadcast block ends in a ReLU, unless it has no layer."""
    if not mlp.linears:
        return mlp(x, mask)
    values = x.rows if isinstance(x, SetBatch) else x
    if why_not_in_training(mlp, values, mask) is None:
        y = stacked_in_training([mlp], values, relu=True).squeeze(0)
        return cast(Any, x.with_rows(y) if isinstance(x, SetBatch) else y)
    return ACTIVATIONS["relu"](mlp(x, mask))
