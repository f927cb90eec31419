"""PCT: offset attention and neighbour embedding in plain loops, and its two networks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dumlp_pin import create_model
from dumlp_pin.models.pct import NeighbourEmbedding, OffsetAttention, PCTClassifier, PCTSegmenter

SMALL: dict[str, Any] = {
    "embedding": (4, 8),
    "local": (8, 8),
    "neighbours": 3,
    "attentions": 2,
    "fused": 12,
}


def with_norms(module: Any) -> Any:
    """In evaluation, with norms that training could have left: fresh ones do nothing."""
    for name, values in [*module.named_parameters(), *module.named_buffers()]:
        if "norm" in name and values.is_floating_point():
            torch.nn.init.uniform_(values, 0.5, 1.5)
    return module.double().eval()


def weights_by_hand(attention: OffsetAttention, x: Tensor) -> Tensor:
    """w_ij = softmax over i of q_i k_j, then every row divided by its sum; q and k are one map."""
    shared = x @ attention.query_and_key.weight.T
    N = len(x)
    weight = torch.zeros(N, N, dtype=x.dtype)
    for j in range(N):
        scores = [math.exp(float(shared[i] @ shared[j])) for i in range(N)]
        for i in range(N):
            weight[i, j] = scores[i] / sum(scores)
    for i in range(N):
        weight[i] /= float(weight[i].sum())
    return weight


def attention_by_hand(attention: OffsetAttention, x: Tensor) -> Tensor:
    weight, value = weights_by_hand(attention, x), attention.value
    rows = []
    for i, element in enumerate(x):
        seen = torch.zeros_like(element)
        for j, other in enumerate(x):
            seen += weight[i, j] * (value.weight @ other + value.bias)
        rows.append(element + F.relu(attention.after((element - seen)[None]))[0])
    return torch.stack(rows)


@torch.no_grad()
def test_offset_attention_by_hand() -> None:
    attention = with_norms(OffsetAttention(8))
    x = torch.randn(5, 8).double()
    torch.testing.assert_close(attention(x[None])[0], attention_by_hand(attention, x))


@torch.no_grad()
def test_offset_attention_worked_out() -> None:
    """Two elements, queries and keys their first number: scores [[1, 2], [2, 4]]."""
    attention = with_norms(OffsetAttention(4))
    attention.query_and_key.weight.copy_(torch.tensor([[1.0, 0, 0, 0]]))
    x = torch.tensor([[[1.0, 0, 0, 0], [2.0, 0, 0, 0]]]).double()
    # Over the queries, down a column: e / (e + e^2) and e^2 / (e^2 + e^4).
    a, b = 1 / (1 + math.e), 1 / (1 + math.e**2)
    expected = [[a / (a + b), b / (a + b)], [(1 - a) / (2 - a - b), (1 - b) / (2 - a - b)]]
    torch.testing.assert_close(attention.weights(x)[0], torch.tensor(expected).double())


@torch.no_grad()
def test_padding_neither_sees_nor_is_seen() -> None:
    attention = with_norms(OffsetAttention(8))
    x, mask = torch.randn(3, 7, 8).double(), torch.arange(7) < torch.tensor([[7], [4], [0]])
    found = attention(torch.where(mask[:, :, None], x, math.nan), mask)
    for b, size in enumerate(mask.sum(1).tolist()):
        if size:
            torch.testing.assert_close(found[b, :size], attention_by_hand(attention, x[b, :size]))
        assert not found[b, size:].any()


@torch.no_grad()
@pytest.mark.parametrize("count", [None, 3])
def test_neighbour_embedding_by_hand(count: int | None) -> None:
    """A neighbour is what it is more than the centre, and the centre."""
    embed = with_norms(NeighbourEmbedding(4, 6, count, neighbours=3))
    points, x = torch.randn(8, 3).double(), torch.randn(8, 4).double()
    centres, found, mask = embed(points[None], x[None])
    assert mask is None
    assert found.shape == (1, count or 8, 6)
    for centre, feature in zip(centres[0], found[0], strict=True):
        distances = (points - centre).norm(dim=1)
        own = x[distances.argmin()]
        members = [torch.cat([x[i] - own, own]) for i in distances.argsort()[:3]]
        largest = F.relu(embed.mlp(torch.stack(members))).amax(0)
        torch.testing.assert_close(feature, largest)


@torch.no_grad()
def test_the_classifier_is_its_layers() -> None:
    model = with_norms(PCTClassifier(3, 5, samples=(6, 4), dense=(8,), dropout=0.5, **SMALL))
    points = torch.randn(2, 9, 3).double()
    encoder = model.encoder
    places, x = points, F.relu(encoder.embed(points))
    for neighbourhood in encoder.neighbourhoods:
        places, x, _ = neighbourhood(places, x)
    assert x.shape == (2, 4, 8)
    z = F.relu(encoder.before(x))
    layers = [x]
    for attention in encoder.attentions:
        z = attention(z)
        layers.append(z)
    fused = F.leaky_relu(encoder.fuse(torch.cat(layers, -1)), 0.2)
    torch.testing.assert_close(model(points), model.head(model.dense(fused.amax(1))))


def test_samples_are_one_for_each_neighbourhood() -> None:
    with pytest.raises(ValueError, match=r"^2 widths \(8, 8\) need as many samples, got \(4,\)$"):
        PCTClassifier(3, 5, samples=(4,), **SMALL)


@torch.no_grad()
def test_the_segmenter_tells_each_point_about_its_set_and_category() -> None:
    model = with_norms(PCTSegmenter(3, 5, num_categories=4, category=2, decoder=(8, 6), **SMALL))
    points, category = torch.randn(2, 9, 3).double(), torch.tensor([3, 0])
    fused, mask = model.encoder(points, None)
    assert mask is None
    assert fused.shape == (2, 9, 12)  # every point is kept
    for b in range(2):
        told = F.leaky_relu(model.category(F.one_hot(category[b : b + 1], 4).double()), 0.2)[0]
        of_set = torch.cat([fused[b].amax(0), fused[b].mean(0), told])
        z = torch.cat([fused[b], of_set.expand(9, -1)], 1)
        z = F.relu(model.rest(F.relu(model.first(z))))
        torch.testing.assert_close(model(points, category)[b], model.head(z))


def test_the_registered_sizes() -> None:
    classifier = create_model("pct_modelnet40")
    assert [layer.count for layer in classifier.encoder.neighbourhoods] == [512, 256]
    assert {layer.neighbours for layer in classifier.encoder.neighbourhoods} == {32}
    assert len(classifier.encoder.attentions) == 4
    segmenter = create_model("pct_shapenetpart")
    assert [layer.count for layer in segmenter.encoder.neighbourhoods] == [None, None]
