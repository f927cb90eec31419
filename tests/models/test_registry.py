import pytest

from dumlp_pin import create_model, list_models
from dumlp_pin.models import register_model


def test_patterns() -> None:
    names = ["dumlp_pin_mnist_l", "dumlp_pin_mnist_s"]
    assert list_models("dumlp_pin_mnist*") == names
    assert set(names) < set(list_models())
    assert list_models("nothing*") == []


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(KeyError, match=r"unknown model .*did you mean 'dumlp_pin_modelnet40'\?"):
        create_model("dumlp_pin_modelnet")


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises(TypeError, match="num_clases"):
        create_model("dumlp_pin_modelnet40", num_clases=3)


def test_a_name_is_registered_once() -> None:
    def dumlp_pin_digits() -> None: ...

    with pytest.raises(ValueError, match=r"^a model named 'dumlp_pin_digits' is registered"):
        register_model(dumlp_pin_digits)  # type: ignore[type-var]
