"""Deep Sets: its layers in plain loops, and its sizes."""

import pytest
import torch

from dumlp_pin import SetBatch, create_model
from dumlp_pin.models import count_macs, count_parameters
from dumlp_pin.models.deep_sets import DeepSetsClassifier, EquivariantLayer


def test_parameters() -> None:
    assert count_parameters(create_model("deepsets_modelnet40")) == 1_339_432  # 1.34 million
    assert count_parameters(create_model("deepsets_modelnet40", in_features=3)) == 1_336_360
    assert count_parameters(create_model("deepsets_digits")) == 23_298
    assert count_parameters(create_model("deepsets_celeba").extractor) == 132_608


def test_the_papers_table_has_two_networks() -> None:
    """1.34 million parameters are those of 512 features, 135 million multiply-adds of 256."""
    narrow = {"equivariant": (256, 256, 256), "dense": (256,), "in_features": 3}
    x = torch.rand(1, 1024, 3)
    for own_weight, parameters in ((False, 208_680), (True, 340_520)):
        model = create_model("deepsets_modelnet40", own_weight=own_weight, **narrow)
        assert count_parameters(model) == parameters
        assert round(count_macs(model, x) / 1e6) == 135
    assert round(count_macs(create_model("deepsets_modelnet40", in_features=3), x) / 1e6) == 539


@pytest.mark.parametrize("pooling", ["max", "mean"])
@pytest.mark.parametrize("own_weight", [False, True])
def test_a_layer_follows_its_formula(pooling: str, own_weight: bool) -> None:
    layer = EquivariantLayer(3, 4, pooling, own_weight).double()
    sets = [torch.randn(5, 3).double(), torch.randn(2, 3).double()]
    found = layer(SetBatch.from_list(sets)).to_list()
    W, b = layer.linear.weight, layer.linear.bias
    V = W if layer.of_pooled is None else layer.of_pooled.weight
    for x, actual in zip(sets, found, strict=True):
        pooled = x.mean(0) if pooling == "mean" else x.max(0).values
        expected = torch.stack([torch.tanh(W @ element - V @ pooled + b) for element in x])
        torch.testing.assert_close(actual, expected)
    assert (layer.of_pooled is not None) == own_weight


def test_the_head_of_the_point_cloud_model() -> None:
    """Maximum, linear, tanh, linear; dropout around the hidden layer, only in training."""
    model = DeepSetsClassifier(3, 5, (8,), dense=(6,), head=(), dropout=0.5).eval()
    x = torch.randn(2, 10, 3)
    (hidden,), (last,) = model.dense, model.head.linears
    expected = last(torch.tanh(hidden(model.layers[0](x).amax(1))))
    torch.testing.assert_close(model(x), expected)
    assert not torch.allclose(model.train()(x), expected)
