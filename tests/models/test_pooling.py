"""Max and mean pooling: where their layers and norms are, and their sizes."""

import pytest
import torch

from dumlp_pin import SetBatch, create_model
from dumlp_pin.models import count_parameters
from dumlp_pin.models.pooling import PoolingBlock


@pytest.mark.parametrize(
    ("name", "count"), [("maxpool_celeba", 65_792), ("meanpool_celeba", 65_792)]
)
def test_parameters_of_the_extractors(name: str, count: int) -> None:
    assert count_parameters(create_model(name).extractor) == count


def test_the_digits_model_has_not_changed() -> None:
    assert count_parameters(create_model("meanpool_digits")) == 23_634


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_a_pooled_feature_by_hand(pooling: str) -> None:
    block = PoolingBlock(pooling, element=(2,), after=(2, 3, 1)).eval()
    sets = SetBatch.from_list([torch.tensor([[1.0, -4.0], [3.0, 2.0]]), torch.tensor([[5.0, 7.0]])])
    pooled = {"max": [[3.0, 2.0], [5.0, 7.0]], "mean": [[2.0, -1.0], [5.0, 7.0]]}[pooling]
    first, second = block.after
    expected = second(first(torch.tensor(pooled)).clamp(min=0))
    torch.testing.assert_close(block(sets), expected)


def test_norms_are_where_the_counts_have_them() -> None:
    """No layer, one linear layer, and an MLP of two, as the paper's grid search has them."""
    widths = [(8,), (8, 8), (8, 4, 8)]
    norms = [len(PoolingBlock("max", element, (8, 8)).element.norms) for element in widths]
    assert norms == [0, 0, 2]
    assert count_parameters(PoolingBlock("max", (8,), (8, 4, 8))) == 8 * 4 + 4 + 4 * 8 + 8


def test_without_layers_it_is_the_pooling() -> None:
    x = torch.randn(2, 5, 3)
    assert torch.equal(PoolingBlock("max", (3,), (3,))(x), x.amax(1))


def test_a_detector_whose_extractor_has_no_weights() -> None:
    model = create_model("maxpool_celeba", extractor=PoolingBlock("max", (256,), (256,))).double()
    before = model.head["score"].weight
    model.reset_head()
    assert not torch.equal(model.head["score"].weight, before)
    assert model.head["score"].weight.dtype == torch.float64
