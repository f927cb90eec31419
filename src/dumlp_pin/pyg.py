"""The aggregation block for PyTorch Geometric: over the neighbours of a node, or over a graph."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from dumlp_pin._errors import need
from dumlp_pin.blocks import AggregationBlock
from dumlp_pin.sets import SetBatch

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # its import uses what PyTorch deprecates
    need("torch_geometric.nn", "pyg")
    from torch_geometric.nn.aggr import Aggregation
    from torch_geometric.nn.inits import reset


class DuMLPPinAggregation(Aggregation):
    """An `AggregationBlock` of the elements (T, F) whose `index` is the same.

    The arguments are those of the block; the result has as many features as the last widths of the
    branches give when multiplied. Inside `SAGEConv` those must be as many as the elements have. A
    group without elements gives zeros, and the elements of a group need not stand together.

    >>> aggregate = DuMLPPinAggregation(16, [(32, 4), (32, 4)])
    >>> aggregate(torch.rand(5, 16), index=torch.tensor([2, 0, 2, 2, 0])).shape
    torch.Size([3, 16])

    >>> from torch_geometric.nn import SAGEConv
    >>> layer = SAGEConv(16, 64, aggr=aggregate)
    >>> layer(torch.rand(3, 16), edge_index=torch.tensor([[0, 1, 2], [1, 2, 1]])).shape
    torch.Size([3, 64])
    """

    def __init__(
        self,
        in_features: int,
        branches: Sequence[Sequence[int]],
        activations: Sequence[str | None] = ("softmax", None),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.block = AggregationBlock(in_features, branches, activations, dropout)

    def reset_parameters(self) -> None:
        reset(self.block)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> Tensor:
        """(dim_size, out_features). `ptr` are offsets of groups that stand together already."""
        self.assert_two_dimensional_input(x, dim)
        if ptr is not None:
            return self.block(SetBatch(x, ptr))
        assert index is not None  # without it, `Aggregation.__call__` makes one group of all
        assert dim_size is not None
        order = index.argsort(stable=True)
        groups = torch.arange(dim_size + 1, device=index.device)
        offsets = torch.searchsorted(index[order], groups)
        if index.device.type == "cpu" and int(offsets[-1]) < len(index):
            raise IndexError("index")  # which `Aggregation.__call__` words for a person
        return self.block(SetBatch(x[order], offsets))

    def __repr__(self) -> str:
        return f"DuMLPPinAggregation({self.block.in_features}, {self.block.out_features})"
