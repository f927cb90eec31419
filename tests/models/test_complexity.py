"""How much the models compute, beside what the paper prints of them."""

from __future__ import annotations

import pytest
import torch

from dumlp_pin import create_model
from dumlp_pin.models.complexity import Work, count_macs, count_work
from dumlp_pin.models.pointnet2 import Level, PointNet2Classifier, Scale
from dumlp_pin.training.paper import Row, get_table

# What the paper prints belongs to another network than the parameters beside it, see `deep_sets`;
# or, of Set Transformer, to none that is published: see `set_transformer`.
NOT_AS_PRINTED = {"Deep Sets": 541, "Set Transformer": 517}
ROWS = get_table("complexity").rows


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_multiply_adds_of_a_shape_of_1024_points(row: Row) -> None:
    name = row.load().model.name
    with torch.device("meta"):
        model = create_model(name)
        counted = count_macs(model, torch.empty(1, 1024, model.in_features)) / 1e6
    assert row.value is not None
    if row.label in NOT_AS_PRINTED:
        assert round(counted) == NOT_AS_PRINTED[row.label]
        assert not 0.5 < counted / row.value < 2
    else:
        assert counted == pytest.approx(row.value, rel=0.1)


def test_shapes_are_enough_to_count() -> None:
    settings = {"samples": (6,), "local": (8,), "embedding": (4,), "neighbours": 3, "fused": 8}
    model = create_model("pct_modelnet40", **settings)
    work = count_work(model, torch.rand(2, 9, 3))
    assert model.training
    assert work == count_work(model.to("meta"), torch.empty(2, 9, 3, device="meta"))
    # 6 centres are sampled from 9 points, and the neighbours of 6 found among 9.
    assert work.distances == 2 * (6 * 9 + 6 * 9)


def test_work_by_hand() -> None:
    assert count_work(torch.nn.Linear(3, 5), torch.rand(7, 3)) == Work(7 * 3 * 5, 0)
    level = Level(4, [Scale(1.0, 3, (5,)), Scale(2.0, 2, (6, 7))])
    model = PointNet2Classifier(3, 10, [level], whole=(8,), dense=(9,))
    macs = 4 * 3 * (3 * 5) + 4 * 2 * (3 * 6 + 6 * 7)  # every member of every group
    macs += 4 * (5 + 7 + 3) * 8 + 8 * 9 + 9 * 10
    assert count_work(model, torch.rand(1, 20, 3)) == Work(macs, 4 * 20 + 4 * 20)


def test_fewer_points_than_centres_are_all_sampled() -> None:
    model = create_model("pct_modelnet40")
    distances = count_work(model.to("meta"), torch.empty(1, 5, 3, device="meta")).distances
    # 5 of 5 points, then 5 of 512 places of which 507 are empty; all around all that may be there.
    assert distances == 5 * 5 + 512 * 5 + 256 * 512 + 256 * 512
