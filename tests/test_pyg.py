"""The aggregation for PyTorch Geometric, against the block on each group alone."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dumlp_pin import SetBatch
from dumlp_pin.pyg import DuMLPPinAggregation

# isort: split
# Behind ours, which silences what the import of PyTorch Geometric deprecates.
from torch_geometric.data import Batch, Data
from torch_geometric.nn import MessagePassing, SAGEConv, global_add_pool
from torch_geometric.nn.aggr import Aggregation, MultiAggregation

GROUPS = 5
INDEX = torch.tensor([3, 0, 3, 1, 0, 3, 3, 0, 4])  # unsorted, and group 2 has no element


@pytest.fixture
def aggregate() -> DuMLPPinAggregation:
    torch.manual_seed(0)
    made = DuMLPPinAggregation(6, [(16, 3), (16, 2)])
    made(torch.randn(50, 6))  # the running estimates of batch norm are no longer the first ones
    return made.eval()


def _group_by_group(aggregate: DuMLPPinAggregation, x: Tensor, index: Tensor) -> Tensor:
    """(GROUPS, 6) by the block alone, one group at a time."""
    return torch.cat([aggregate.block(x[None, index == group]) for group in range(GROUPS)])


def test_each_group_gets_what_the_block_says_of_it(aggregate: DuMLPPinAggregation) -> None:
    x = torch.randn(len(INDEX), 6)
    expected = _group_by_group(aggregate, x, INDEX)
    torch.testing.assert_close(aggregate(x, INDEX), expected)
    torch.testing.assert_close(aggregate(x, INDEX, dim=0), expected)
    assert not expected[2].any()
    assert expected[[0, 1, 3, 4]].any(1).all()


def test_groups_that_stand_together_are_given_by_their_offsets(
    aggregate: DuMLPPinAggregation,
) -> None:
    x = torch.randn(len(INDEX), 6)
    order = INDEX.argsort()
    ptr = torch.tensor([0, 3, 4, 4, 8, 9])
    expected = _group_by_group(aggregate, x, INDEX)
    torch.testing.assert_close(aggregate(x[order], ptr=ptr), expected)
    torch.testing.assert_close(aggregate(x[order], INDEX[order], ptr, dim_size=5), expected)


def test_groups_behind_the_last_element_are_zero(aggregate: DuMLPPinAggregation) -> None:
    features = aggregate(torch.randn(len(INDEX), 6), INDEX, dim_size=8)
    assert features.shape == (8, 6)
    assert not features[5:].any()
    assert aggregate(torch.empty(0, 6), INDEX[:0], dim_size=3).tolist() == [[0] * 6] * 3


def test_without_an_index_all_is_one_group(aggregate: DuMLPPinAggregation) -> None:
    x = torch.randn(7, 6)
    torch.testing.assert_close(aggregate(x), aggregate.block(x[None]))


def test_gradients_in_training_are_those_of_the_block(aggregate: DuMLPPinAggregation) -> None:
    x = torch.randn(len(INDEX), 6, requires_grad=True)
    aggregate.train()(x, INDEX).square().sum().backward()
    (gradient,), x.grad = [x.grad], None
    order = INDEX.argsort(stable=True)
    ptr = torch.tensor([0, 3, 4, 4, 8, 9])
    sets = SetBatch(x[order], ptr)
    aggregate.block(sets).square().sum().backward()
    assert gradient is not None
    assert gradient.any()
    torch.testing.assert_close(gradient, x.grad)


def test_messages_to_a_node_are_a_set(aggregate: DuMLPPinAggregation) -> None:
    """Whatever the order of the edges."""
    layer = SAGEConv(6, 4, aggr=aggregate).eval()  # this gives the block fresh weights
    x = torch.randn(GROUPS, 6)
    source = torch.tensor([1, 2, 4, 0, 0, 3, 2, 1, 4])
    expected = layer.lin_l(_group_by_group(aggregate, x[source], INDEX)) + layer.lin_r(x)
    torch.testing.assert_close(layer(x, torch.stack((source, INDEX))), expected)
    shuffled = torch.randperm(len(INDEX))
    edges = torch.stack((source, INDEX))[:, shuffled]
    torch.testing.assert_close(layer(x, edges), expected)


def test_it_stands_beside_other_aggregations(aggregate: DuMLPPinAggregation) -> None:
    layer = SAGEConv(6, 4, aggr=MultiAggregation([aggregate, "mean"]))
    assert layer(torch.randn(GROUPS, 6), torch.stack((INDEX.flip(0), INDEX))).shape == (5, 4)
    assert isinstance(MessagePassing(aggr=aggregate).aggr_module, Aggregation)


class Readout(nn.Module):
    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.first = SAGEConv(2, 6, aggr=DuMLPPinAggregation(2, [(8, 2), (8, 1)]))
        self.last = last
        self.score = nn.LazyLinear(2)

    def forward(self, data: Data) -> Tensor:
        x = self.first(data.x, data.edge_index).relu()
        return self.score(self.last(x, data.batch))


def _triangle_or_path(label: int, generator: torch.Generator) -> Data:
    """Three nodes with one feature of their own, that are all neighbours or not."""
    edges = torch.tensor([[0, 1], [1, 2], [2, 0]][: 2 + label])
    both = torch.cat((edges, edges.flip(1))).T
    return Data(torch.rand(3, 2, generator=generator), both, y=torch.tensor([label]))


def test_a_readout_of_graphs_learns() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    batch: Any = Batch.from_data_list([_triangle_or_path(i % 2, generator) for i in range(64)])
    model = Readout(DuMLPPinAggregation(6, [(8, 4), (8, 4)]))
    model(batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(batch), batch.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (model.eval()(batch).argmax(1) == batch.y).float().mean() > 0.9
    assert global_add_pool(batch.x, batch.batch).shape == (64, 2)  # the batch is of 64 graphs


def test_fresh_weights_are_drawn_again(aggregate: DuMLPPinAggregation) -> None:
    before = {name: value.clone() for name, value in aggregate.state_dict().items()}
    aggregate.reset_parameters()
    after = aggregate.state_dict()
    assert not torch.equal(
        before["block.branches.0.linears.0.weight"], after["block.branches.0.linears.0.weight"]
    )
    assert not after["block.branches.0.norms.0.running_mean"].any()


def test_errors_say_what_to_do(aggregate: DuMLPPinAggregation) -> None:
    x = torch.randn(len(INDEX), 6)
    with pytest.raises(ValueError, match=r"'dim_size' \(got '3' but expected >= '5'\)"):
        aggregate(x, INDEX, dim_size=3)
    with pytest.raises(ValueError, match="two-dimensional inputs"):
        aggregate(x[None], INDEX)
    with pytest.raises(ValueError, match="expected 6 features, got 5"):
        aggregate(x[:, :5], INDEX)
    assert repr(aggregate) == "DuMLPPinAggregation(6, 6)"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dumlp_pin.pyg")
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    message = r'^torch_geometric.nn is not installed: pip install "dumlp-pin\[pyg\]"$'
    with pytest.raises(ModuleNotFoundError, match=message):
        importlib.import_module("dumlp_pin.pyg")
