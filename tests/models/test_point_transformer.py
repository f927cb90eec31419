"""Point Transformer: vector attention and its transitions in plain loops, and its two networks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dumlp_pin import create_model
from dumlp_pin.models.point_transformer import (
    Level,
    PointTransformerClassifier,
    PointTransformerSegmenter,
    TransitionDown,
    TransitionUp,
    VectorAttention,
)

SMALL: dict[str, Any] = {"widths": (4, 8), "samples": (3,), "neighbours": 3, "attention": 6}


def with_norms(module: Any) -> Any:
    """In evaluation, with norms that training could have left: fresh ones do nothing."""
    for name, values in [*module.named_parameters(), *module.named_buffers()]:
        if "norm" in name and values.is_floating_point():
            nn.init.uniform_(values, 0.5, 1.5)
    return module.double().eval()


def attention_by_hand(block: VectorAttention, points: Tensor, x: Tensor) -> Tensor:
    """x_i + W sum_j softmax_j(score(q_i - k_j + p_ij)) * (v_j + p_ij), p_ij of the positions."""
    inside = block.enter(x)
    width = inside.shape[1]
    rows = []
    for i in range(len(x)):
        near = (points - points[i]).square().sum(1).argsort()[: block.neighbours].tolist()
        score, value = {}, {}
        for j in near:
            p = block.position(points[i] - points[j])
            relation = block.query(inside[i]) - block.key(inside[j]) + p
            score[j] = block.score(relation) / math.sqrt(width)
            value[j] = block.value(inside[j]) + p
        seen = torch.zeros(width, dtype=x.dtype)
        for f in range(width):  # every feature has a softmax of its own
            total = sum(math.exp(float(score[j][f])) for j in near)
            for j in near:
                seen[f] += math.exp(float(score[j][f])) / total * value[j][f]
        rows.append(x[i] + block.leave(seen))
    return torch.stack(rows)


@torch.no_grad()
def test_vector_attention_by_hand() -> None:
    block = VectorAttention(4, width=6, neighbours=3).double()
    points, x = torch.randn(7, 3).double(), torch.randn(7, 4).double()
    torch.testing.assert_close(block(points[None], x[None])[0], attention_by_hand(block, points, x))


@torch.no_grad()
def test_vector_attention_worked_out() -> None:
    """Two points on a line, every map the identity but queries and keys, which are zero.

    Then p_ij is relu(r) for the offset r, the score of feature 0 is p_ij, and all is on paper.
    """
    block: Any = VectorAttention(3, width=3, neighbours=2).double()
    for linear in (block.enter, block.value, block.leave, block.position[0], block.position[2]):
        nn.init.eye_(linear.weight)
    for linear in (block.enter, block.leave, block.position[0], block.position[2]):
        nn.init.zeros_(linear.bias)
    for layer in (block.query, block.key):
        nn.init.zeros_(layer.weight)
    for layer in (block.score[0], block.score[2]):
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    points = torch.tensor([[[0.0, 0, 0], [2.0, 0, 0]]]).double()
    x = torch.tensor([[[1.0, 0, 0], [5.0, 0, 0]]]).double()
    # Seen from the second point, itself has p = 0 and value 1 * 5, the first p = 2 and 1 + 2.
    a = math.exp(2 / math.sqrt(3))
    second = 5 + (1 * 5 + a * 3) / (1 + a)
    first = 1 + (1 + 5) / 2  # no positive offset: both alike
    found = block(points, x)[0]
    torch.testing.assert_close(found[:, 0], torch.tensor([first, second]).double())
    assert not found[:, 1:].any()


@torch.no_grad()
def test_padding_neither_sees_nor_is_seen() -> None:
    block = VectorAttention(4, width=6, neighbours=3).double()
    points, x = torch.randn(3, 7, 3).double(), torch.randn(3, 7, 4).double()
    mask = torch.arange(7) < torch.tensor([[7], [2], [0]])
    hidden = [torch.where(mask[:, :, None], values, math.nan) for values in (points, x)]
    found = block(*hidden, mask)
    for b, size in ((0, 7), (1, 2)):
        expected = attention_by_hand(block, points[b, :size], x[b, :size])
        torch.testing.assert_close(found[b, :size], expected)
    assert not found[~mask].any()


@torch.no_grad()
def test_down_is_the_maximum_around_each_centre() -> None:
    down = with_norms(TransitionDown(4, 6, count=3, neighbours=2))
    points, x = torch.randn(8, 3).double(), torch.randn(8, 4).double()
    level = down(Level(points[None], x[None], None))
    assert level.points.shape == (1, 3, 3)
    for centre, feature in zip(level.points[0], level.x[0], strict=True):
        near = (points - centre).square().sum(1).argsort()[:2]
        members = torch.cat([points[near] - centre, x[near]], 1)
        torch.testing.assert_close(feature, F.relu(down.mlp(members)).amax(0))


@torch.no_grad()
def test_up_adds_what_the_three_nearest_say() -> None:
    up = with_norms(TransitionUp(6, 4))
    coarse, fine = (
        Level(torch.randn(1, n, 3).double(), torch.randn(1, n, width).double(), None)
        for n, width in ((5, 6), (9, 4))
    )
    found = up(coarse, fine)
    said = F.relu(up.coarse(coarse.x))[0]
    for i, point in enumerate(fine.points[0]):
        squares = (coarse.points[0] - point).square().sum(1)
        near = squares.argsort()[:3]
        weight = (1 / squares[near]) / (1 / squares[near]).sum()
        expected = weight @ said[near] + F.relu(up.fine(fine.x[0, i : i + 1]))[0]
        torch.testing.assert_close(found[0, i], expected)


@torch.no_grad()
def test_the_classifier_is_its_layers() -> None:
    model = with_norms(PointTransformerClassifier(6, 5, dense=(7,), **SMALL))
    x = torch.randn(2, 9, 6).double()
    encoder, points = model.encoder, x[:, :, :3]
    first, second = encoder.attentions
    level = encoder.downs[0](Level(points, first(points, encoder.embed(x)), None))
    last = second(level.points, level.x)
    assert last.shape == (2, 3, 8)
    torch.testing.assert_close(model(x), model.head(F.relu(model.dense(last.mean(1)))))


@torch.no_grad()
def test_the_segmenter_goes_down_and_up_again() -> None:
    sizes = {"middle": (5,), "decoder": (7,), **SMALL}
    model = with_norms(PointTransformerSegmenter(3, 5, num_categories=4, **sizes))
    points, category = torch.randn(2, 9, 3).double(), torch.tensor([3, 0])
    told = F.one_hot(category, 4).double()[:, None].expand(-1, 9, -1)
    fine, coarse = model.encoder(points, torch.cat([points, told], 2), None)
    coarse = coarse._replace(x=model.middle(coarse.x))
    coarse = coarse._replace(x=model.middle_attention(*coarse))
    (up,), (attention,) = model.ups, model.attentions
    z = attention(points, up(coarse, fine))
    assert z.shape == (2, 9, 4)
    torch.testing.assert_close(model(points, category), model.head(F.relu(model.decoder(z))))


def test_samples_are_one_for_each_width_but_the_first() -> None:
    sizes: dict[str, Any] = {**SMALL, "samples": (8, 4)}
    with pytest.raises(ValueError, match=r"^2 samples need one width more, got \(4, 8\)$"):
        PointTransformerClassifier(3, 5, **sizes)


def test_the_registered_sizes() -> None:
    classifier = create_model("point_transformer_modelnet40")
    assert [down.count for down in classifier.encoder.downs] == [256, 64, 16, 4]
    segmenter = create_model("point_transformer_shapenetpart")
    assert [down.count for down in segmenter.encoder.downs] == [512, 128, 32, 8]
    for attention in [*classifier.encoder.attentions, *segmenter.attentions]:
        assert attention.neighbours == 16
        assert attention.query.out_features == 512
