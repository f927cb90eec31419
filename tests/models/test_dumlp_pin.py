"""The paper's models: their sizes, and the parts of timm's interface they offer."""

import pytest
import torch

from dumlp_pin import AggregationBlock, create_model
from dumlp_pin.models import AnomalyDetector, count_macs, count_parameters, list_models
from dumlp_pin.models.networks import Stage

PARAMETERS = {
    "dumlp_pin_mnist_s": 283_210,
    "dumlp_pin_mnist_l": 1_129_994,
    "dumlp_pin_modelnet40": 291_112,
    "dumlp_pin_shapenetpart_s": 702_418,
    "dumlp_pin_shapenetpart_l": 977_554,
    "dumlp_pin_scannet_s": 705_685,
    "dumlp_pin_scannet_l": 826_485,
    "dumlp_pin_celeba": 1_475_847,  # "about 1.48 million"
    "dumlp_pin_digits": 24_234,
}


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_parameters(name: str, count: int) -> None:
    assert count_parameters(create_model(name)) == count


def test_every_model_of_the_paper_is_counted() -> None:
    ours = [name for name in list_models("dumlp_pin_*") if not name.endswith("_plus")]
    assert sorted(PARAMETERS) == ours


def test_the_set_feature_extractor_of_celeba() -> None:
    assert count_parameters(create_model("dumlp_pin_celeba").extractor) == 83_334


def test_multiply_adds_of_modelnet40() -> None:
    macs = count_macs(create_model("dumlp_pin_modelnet40"), torch.rand(1, 1024, 6))
    assert round(macs / 1e6, 1) == 18.5


@pytest.mark.parametrize("name", [n for n in list_models() if "celeba" not in n])
def test_head_and_features_are_the_model(name: str) -> None:
    model = create_model(name).eval()
    inputs = {"x": torch.randn(2, 20, model.in_features)}
    if getattr(model, "num_categories", 0):
        inputs["category"] = torch.tensor([0, 3])
    logits = model(**inputs)
    features = model.forward_features(**inputs)
    assert features.shape[-1] == model.num_features
    torch.testing.assert_close(model.forward_head(features), logits)

    body = {k: v.clone() for k, v in model.state_dict().items() if not k.startswith("head")}
    model.reset_head(7)
    assert model.eval()(**inputs).shape == (*logits.shape[:-1], 7)
    assert all(torch.equal(model.state_dict()[k], v) for k, v in body.items())


def test_a_new_head_takes_the_models_precision() -> None:
    model = create_model("dumlp_pin_digits").double()
    model.reset_head(3)
    assert model(torch.rand(2, 64, 3).double()).dtype == torch.float64


def test_a_detector_scores_images_and_vectors() -> None:
    model = create_model("dumlp_pin_celeba").eval()
    images = torch.rand(2, 10, 3, 49, 40)
    assert model(images).shape == (2, 10)
    elements = model.forward_elements(images)
    features = model.forward_features(images)
    torch.testing.assert_close(model.forward_head(elements, features), model(images))
    model.reset_head()
    vectors = AnomalyDetector(AggregationBlock(8, [(4, 2), (4, 3)], (None, None)), width=8)
    mask = torch.tensor([[True, True, False]])
    logits = vectors.eval()(torch.randn(1, 3, 8), mask=mask)
    assert logits[0, 2] == -torch.inf
    assert logits.softmax(1)[0, 2] == 0


def test_categories_out_of_range_or_of_the_wrong_kind() -> None:
    model, x = create_model("dumlp_pin_shapenetpart_s"), torch.rand(2, 20, 3)
    with pytest.raises(ValueError, match=r"^categories are 0\.\.15, got 16$"):
        model(x, torch.tensor([0, 16]))
    with pytest.raises(ValueError, match=r"^categories are 0\.\.15, got -1$"):
        model(x, torch.tensor([0, -1]))
    with pytest.raises(TypeError, match=r"^categories are integers \(B,\), got torch\.float32"):
        model(x, torch.rand(2))
    with pytest.raises(TypeError, match=r"^this model needs a category \(B,\) in 0\.\.15$"):
        model(x)
    with pytest.raises(TypeError, match=r"^this model takes no category$"):
        create_model("dumlp_pin_scannet_s")(x, torch.tensor([0, 1]))


def test_a_wrong_image_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^expected images \(T, 3, H, W\), got shape"):
        create_model("dumlp_pin_celeba")(torch.rand(2, 10, 1, 49, 40))


def test_stages_can_be_overridden() -> None:
    stage = Stage([(16, 4), (16, 4)], element=(3, 32), set=(16, 8), combined=(64,))
    model = create_model("dumlp_pin_digits", stages=[stage])
    assert model(torch.rand(2, 64, 3)).shape == (2, 10)
