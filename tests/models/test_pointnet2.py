"""PointNet++: set abstraction and feature propagation in plain loops, and its networks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dumlp_pin import create_model
from dumlp_pin.models.pointnet2 import (
    Cloud,
    FeaturePropagation,
    Level,
    PointNet2Classifier,
    PointNet2Segmenter,
    Scale,
    SetAbstraction,
    WholeSet,
)

TWO_SCALES = Level(4, [Scale(0.8, 3, (5, 6)), Scale(2.0, 5, (7,))])
LEVELS = [Level(6, [Scale(1.0, 4, (6,))]), Level(3, [Scale(2.0, 4, (8,))])]


def with_norms(module: Any) -> Any:
    """In evaluation, with norms that training could have left: fresh ones do nothing."""
    for name, values in [*module.named_parameters(), *module.named_buffers()]:
        if "norm" in name and values.is_floating_point():
            torch.nn.init.uniform_(values, 0.5, 1.5)
    return module.double().eval()


def cloud(N: int, features: int, D: int = 3) -> Cloud:
    return Cloud(torch.randn(1, N, D).double(), torch.randn(1, N, features).double(), None)


def around(centre: Tensor, places: Tensor, scale: Scale) -> list[int]:
    """The points of a ball, the nearest first."""
    distance = (places - centre).norm(dim=1)
    return [i for i in distance.argsort()[: scale.neighbours].tolist() if distance[i] <= scale[0]]


@torch.no_grad()
@pytest.mark.parametrize("D", [2, 3])
def test_an_abstraction_by_hand(D: int) -> None:
    abstraction = with_norms(SetAbstraction(4, D, TWO_SCALES))
    fine = cloud(12, 4, D)
    places, features, _ = fine
    coarse = abstraction(fine)
    assert coarse.features.shape == (1, 4, abstraction.out_features) == (1, 4, 13)
    sizes = []
    for centre, found in zip(coarse.places[0], coarse.features[0], strict=True):
        expected = []
        for scale, mlp in zip(TWO_SCALES.scales, abstraction.mlps, strict=True):
            near = around(centre, places[0], scale)
            sizes.append(len(near))
            members = torch.cat([features[0, near], places[0, near] - centre], 1)
            expected.append(F.relu(mlp(members)).amax(0))
        torch.testing.assert_close(found, torch.cat(expected))
    assert len(set(sizes)) > 1  # some balls were not full


@torch.no_grad()
def test_centres_are_far_from_one_another() -> None:
    corners = torch.tensor([[0.0, 0], [0, 8], [8, 0], [8, 9]])
    crowd = torch.rand(30, 2)
    places = torch.cat([crowd, corners])[None].double()
    abstraction = SetAbstraction(0, 2, Level(4, [Scale(1.0, 4, (5,))])).double().eval()
    centres = abstraction(Cloud(places, places[:, :, :0], None)).places[0]
    assert {tuple(centre) for centre in centres.tolist()} >= {(0, 8), (8, 0), (8, 9)}


@torch.no_grad()
def test_a_ball_that_is_not_full_is_not_filled_with_copies() -> None:
    """In training, batch norm counts every point in a ball once."""
    abstraction = SetAbstraction(1, 1, Level(2, [Scale(1.0, 3, (2,))])).double()
    places = torch.tensor([[[0.0], [0.5], [9.0]]]).double()
    abstraction(Cloud(places, torch.tensor([[[1.0], [2.0], [4.0]]]).double(), None))
    # The centre at 9 has one member, that at 0 has two.
    members = torch.tensor([[4.0, 0.0], [1.0, 0.0], [2.0, 0.5]]).double()
    mlp: Any = abstraction.mlps[0]
    mean = mlp.linears[0](members).mean(0)
    torch.testing.assert_close(mlp.norms[0].running_mean, 0.1 * mean)


@torch.no_grad()
def test_the_whole_set_is_one_group_around_the_origin() -> None:
    whole, fine = with_norms(WholeSet(4, 3, (6, 5))), cloud(7, 4)
    coarse = whole(fine)
    members = torch.cat([fine.features[0], fine.places[0]], 1)
    torch.testing.assert_close(coarse.features[0, 0], F.relu(whole.mlp(members)).amax(0))
    assert not coarse.places.any()


@torch.no_grad()
def test_a_propagation_by_hand() -> None:
    propagate = with_norms(FeaturePropagation(6 + 4, (8, 5)))
    fine, coarse = cloud(9, 4), cloud(5, 6)
    found = propagate(fine, coarse).features[0]
    for i, place in enumerate(fine.places[0]):
        squares = (coarse.places[0] - place).square().sum(1)
        near = squares.argsort()[:3]
        weight = (1 / squares[near]) / (1 / squares[near]).sum()
        z = torch.cat([weight @ coarse.features[0, near], fine.features[0, i]])
        torch.testing.assert_close(found[i], F.relu(propagate.mlp(z[None]))[0])


@torch.no_grad()
def test_padding_takes_no_part() -> None:
    abstraction = with_norms(SetAbstraction(2, 3, TWO_SCALES))
    places, features = torch.randn(2, 9, 3).double(), torch.randn(2, 9, 2).double()
    mask = torch.arange(9) < torch.tensor([[9], [2]])
    real = mask[:, :, None]
    hidden = Cloud(places.where(real, math.inf), features.where(real, math.inf), mask)
    together = abstraction(hidden)
    assert together.mask is not None
    assert together.mask.sum(1).tolist() == [4, 2]  # two points have two centres
    for b, size in ((0, 9), (1, 2)):
        alone = abstraction(Cloud(places[b : b + 1, :size], features[b : b + 1, :size], None))
        number = min(4, size)
        torch.testing.assert_close(together.places[b, :number], alone.places[0, :number])
        torch.testing.assert_close(together.features[b, :number], alone.features[0, :number])


@torch.no_grad()
def test_the_classifier_is_its_layers() -> None:
    model = with_norms(PointNet2Classifier(5, 4, LEVELS, whole=(9,), dense=(7,), dropout=0.5))
    x = torch.randn(2, 12, 5).double()
    coarse = Cloud(x[:, :, :3], x[:, :, 3:], None)
    for abstraction in model.hierarchy.abstractions:
        coarse = abstraction(coarse)
    assert coarse.features.shape == (2, 1, 9)
    torch.testing.assert_close(model(x), model.head(model.dense(coarse.features[:, 0])))


@torch.no_grad()
@pytest.mark.parametrize("categories", [0, 4])
def test_the_segmenter_goes_down_and_up_again(categories: int) -> None:
    model = with_norms(
        PointNet2Segmenter(5, 6, LEVELS, [(8,), (7, 6)], num_categories=categories, dropout=0.5)
    )
    x, category = torch.randn(2, 12, 5).double(), torch.tensor([3, 0])
    clouds = model.hierarchy(x)
    assert [each.places.shape[1] for each in clouds] == [12, 6, 3]
    fine = clouds[0]
    if categories:  # beside an element's own features, its place and its set's category
        told = F.one_hot(category, 4).double()[:, None].expand(-1, 12, -1)
        fine = fine._replace(features=torch.cat([x[:, :, 3:], x[:, :, :3], told], 2))
    last, first = model.propagations
    z = first(fine, last(clouds[1], clouds[2])).features
    given = {"category": category} if categories else {}
    torch.testing.assert_close(model(x, **given), model.head(z))


def test_a_propagation_for_each_level() -> None:
    with pytest.raises(ValueError, match=r"^2 levels need as many propagations: \[\(8,\)\]$"):
        PointNet2Segmenter(3, 6, LEVELS, [(8,)])


def test_levels_may_come_from_a_file() -> None:
    """TOML has lists where Python has Level and Scale."""
    from_file: Any = [[6, [[1.0, 4, [6]]]], [3, [[2.0, 4, [8]]]]]
    models = [PointNet2Classifier(3, 4, levels).eval() for levels in (LEVELS, from_file)]
    models[1].load_state_dict(models[0].state_dict())
    x = torch.randn(1, 9, 3)
    assert torch.equal(models[0](x), models[1](x))


def test_the_registered_scales() -> None:
    first, second, whole = create_model("pointnet2_modelnet40").hierarchy.abstractions
    assert (first.centres, second.centres) == (512, 128)
    assert [scale[:2] for scale in first.scales] == [(0.1, 16), (0.2, 32), (0.4, 128)]
    assert [scale[:2] for scale in second.scales] == [(0.2, 32), (0.4, 64), (0.8, 128)]
    assert whole.out_features == 1024
    levels = create_model("pointnet2_scannet").hierarchy.abstractions
    assert [level.centres for level in levels] == [1024, 256, 64, 16]
