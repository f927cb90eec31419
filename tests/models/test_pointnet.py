"""PointNet: its transform nets and its way back to the elements, by hand, and its sizes."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dumlp_pin import SetBatch, create_model
from dumlp_pin.models import count_macs, count_parameters
from dumlp_pin.models.pointnet import PointNetClassifier, PointNetSegmenter, TransformNet

SMALL: dict[str, Any] = {
    "first": (6, 8),
    "second": (8, 16),
    "dense": (12, 10),
    "input_net": {"element": (4, 8), "after": (4,)},
    "feature_net": {"element": (4, 8), "after": (4,)},
}


def in_use(model: Any) -> Any:
    """With matrices that training could have left: fresh ones are the identity."""
    for module in model.modules():
        if isinstance(module, TransformNet):
            nn.init.normal_(module.matrix.weight, std=0.3)
            nn.init.normal_(module.matrix.bias, std=0.3)
    return model.double().eval()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("pointnet_mnist", 3_472_339),  # the paper's table has 3.47 million
        ("pointnet_modelnet40", 3_480_433),  # 3.48
        ("pointnet_shapenetpart", 7_831_803),  # 7.83
        ("pointnet_scannet", 3_538_398),  # 3.54
    ],
)
def test_parameters(name: str, count: int) -> None:
    assert count_parameters(create_model(name)) == count


def test_the_published_sizes() -> None:
    points_only = create_model("pointnet_modelnet40", in_features=3)
    assert count_parameters(points_only) == 3_480_049
    assert round(count_macs(points_only, torch.rand(1, 1024, 3)) / 1e6) == 448  # 440 in the table
    net = {"element": (256, 1024)}
    as_scripted = create_model("pointnet_shapenetpart", feature_net=net)
    assert count_parameters(as_scripted) == 7_979_451


def test_parameters_of_the_extractor() -> None:
    assert count_parameters(create_model("pointnet_celeba").extractor) == 131_584


@torch.no_grad()
def test_a_transform_net_turns_points_and_normals_alike() -> None:
    net = in_use(TransformNet(6, size=3, element=(4, 8), after=(4,)))
    sets = [torch.randn(size, 6).double() for size in (5, 2)]
    turned = net(SetBatch.from_list(sets)).to_list()
    for x, actual in zip(sets, turned, strict=True):
        pooled = F.relu(net.element(x)).amax(0, keepdim=True)
        matrix = torch.eye(3) + net.matrix(F.relu(net.after(pooled))).view(3, 3)
        for element, turned_element in zip(x, actual, strict=True):
            expected = torch.cat([element[:3] @ matrix, element[3:] @ matrix])
            torch.testing.assert_close(turned_element, expected)
        assert (actual - x).abs().max() > 0.1


def test_features_that_are_no_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^expected vectors of 3 numbers, got 4 features$"):
        PointNetClassifier(4, 10)


@torch.no_grad()
@pytest.mark.parametrize("every_layer", [False, True])
def test_the_way_back_to_the_elements_is_a_layer_on_both(every_layer: bool) -> None:
    """As PointNet has it: the maximum and the category are appended to every element."""
    model = in_use(
        PointNetSegmenter(3, 5, every_layer=every_layer, num_categories=4, dropout=0.5, **SMALL)
    )
    x, category = torch.randn(2, 9, 3).double(), torch.tensor([1, 3])
    layers, turned, largest = model.trunk(x)
    y = torch.cat([largest, F.one_hot(category, 4)], 1)
    of_element = torch.cat(layers, 2) if every_layer else turned
    appended = torch.cat([of_element, y[:, None].expand(-1, 9, -1)], 2)
    block = model.broadcast
    weight = torch.cat([block.from_element.weight, block.from_set.weight], 1)
    z = F.relu(block.norm(F.linear(appended, weight, block.from_element.bias)))
    for layer in model.dense:
        z = F.relu(layer(z))
    torch.testing.assert_close(model(x, category), model.head(z))


def test_training_with_turns_is_the_same_padded_and_packed() -> None:
    """The laws meet fresh nets, whose turns are the identity; here they are not."""
    model = in_use(PointNetSegmenter(3, 5, every_layer=True, **SMALL)).train()
    sets = SetBatch.from_list([torch.randn(size, 3).double() for size in (7, 0, 4)])
    x, mask = sets.to_padded(9)
    x = torch.where(mask[:, :, None], x, torch.nan)
    gradients = []
    for output in (model(sets).rows, model(x, mask=mask)[mask]):
        model.zero_grad()
        output.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for packed, padded in zip(*gradients, strict=True):
        torch.testing.assert_close(padded, packed, rtol=1e-7, atol=1e-7)
    assert model.trunk.turn_input.element.linears[0].weight.grad.abs().max() > 1e-3


def test_dropout_only_in_training() -> None:
    model, x = in_use(PointNetClassifier(3, 5, dropout=0.5, **SMALL)), torch.rand(4, 9, 3).double()
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_categories_are_given_where_they_are_known() -> None:
    x = torch.rand(2, 5, 3)
    with pytest.raises(TypeError, match=r"^this model needs a category \(B,\) in 0\.\.15$"):
        create_model("pointnet_shapenetpart")(x)
    with pytest.raises(ValueError, match=r"^categories are 0\.\.15, got 16$"):
        create_model("pointnet_shapenetpart")(x, torch.tensor([0, 16]))
    with pytest.raises(TypeError, match=r"^this model takes no category$"):
        create_model("pointnet_scannet")(x, torch.tensor([0, 1]))
