"""Calls of a model as a CUDA graph; what needs the graph itself runs on a GPU only."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dumlp_pin import SetBatch, captured, create_model
from dumlp_pin.kernels.capture import Arguments

gpu = pytest.mark.gpu


@pytest.fixture
def cuda() -> torch.device:
    """Unlike most kernels a graph has no interpreter."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")


def test_a_processor_has_no_graphs() -> None:
    model = create_model("dumlp_pin_digits").eval()
    message = "a CUDA graph needs a GPU, the input is on cpu"
    with pytest.raises(ValueError, match=f"^{message}$"):
        captured(model, torch.zeros(1, 9, 3))


def test_training_is_not_captured() -> None:
    model = create_model("dumlp_pin_digits").eval()
    model.head.train()
    with pytest.raises(RuntimeError, match=r"^captured\(\) is for inference: call eval\(\) first$"):
        captured(model, torch.zeros(1, 9, 3))


def test_an_example_of_the_input_is_needed() -> None:
    with pytest.raises(TypeError, match=r"^captured\(\) needs an example of each input: [^\n]*$"):
        captured(create_model("dumlp_pin_digits").eval())


X, MASK = torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)
OTHERS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "captured for (2, 3, 4), torch.float32, cpu; got (2, 3, 5), torch.float32, cpu": (
        (torch.zeros(2, 3, 5),),
        {"mask": MASK},
    ),
    "captured for (2, 3, 4), torch.float32, cpu; got (2, 3, 4), torch.bfloat16, cpu": (
        (X.bfloat16(),),
        {"mask": MASK},
    ),
    "captured for (2, 3, 4), torch.float32, cpu; got (2, 3, 4), torch.float32, meta": (
        (X.to("meta"),),
        {"mask": MASK},
    ),
    "captured for (2, 3), torch.bool, cpu; got None": ((X,), {"mask": None}),
    "captured with other arguments: call it as it was captured": ((X,), {}),
}


@pytest.mark.parametrize("message", OTHERS)
def test_other_inputs_than_the_captured(message: str) -> None:
    arguments = Arguments((X,), {"mask": MASK})
    inputs, named = OTHERS[message]
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}$"):
        arguments.fill(inputs, named)


def test_inputs_come_in_their_place_whatever_their_form() -> None:
    sets = SetBatch.from_list([torch.zeros(2, 3), torch.zeros(4, 3)])
    arguments = Arguments((sets,), {"category": torch.tensor([0, 0]), "mask": None})
    others = SetBatch.from_list([torch.ones(5, 3), torch.ones(1, 3)])
    arguments.fill((others,), {"mask": None, "category": torch.tensor([1, 2])})
    seen, named = arguments.call(lambda *given, **named: (given[0], named))
    assert torch.equal(seen.rows, others.rows)
    assert seen.sizes.tolist() == [5, 1]
    assert seen.set_index.tolist() == [0] * 5 + [1]
    assert named["category"].tolist() == [1, 2]
    assert named["mask"] is None
    assert not sets.rows.any()  # the example stays as it was


def test_an_example_made_in_inference_mode_can_be_written_outside() -> None:
    with torch.inference_mode():
        example = torch.zeros(2)
        with torch.inference_mode(False):
            arguments = Arguments((example,), {})
    arguments.fill((torch.ones(2),), {})
    assert arguments.call(Tensor.sum) == 2


def test_autocast_keeps_no_weights_that_a_graph_would_read() -> None:
    model, arguments = nn.Linear(3, 2), Arguments((torch.ones(1, 3),), {})
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        before = arguments.call(model)
        assert before.dtype == torch.bfloat16
        model.weight.data.zero_()
        assert torch.equal(arguments.call(model), model.bias.bfloat16()[None])
        assert torch.is_autocast_cache_enabled()


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["dumlp_pin_modelnet40", "dumlp_pin_mnist_l"])
def test_a_graph_answers_as_the_model(name: str, dtype: torch.dtype, cuda: torch.device) -> None:
    model = create_model(name).eval().to(cuda, dtype)
    draw = [torch.randn(2, 50, model.in_features, device=cuda, dtype=dtype) for _ in range(3)]
    fast = captured(model, draw[0])
    with torch.inference_mode():
        for x in draw:
            torch.testing.assert_close(fast(x), model(x))


@gpu
def test_a_graph_of_sets_in_other_forms(cuda: torch.device) -> None:
    model = create_model("dumlp_pin_shapenetpart_s").eval().to(cuda)
    x, category = torch.randn(3, 40, 3, device=cuda), torch.tensor([1, 5, 9], device=cuda)
    mask = torch.rand(3, 40, device=cuda) < 0.5
    fast = captured(
        model, torch.zeros_like(x), torch.zeros_like(category), mask=mask.new_ones(3, 40)
    )
    with torch.no_grad():
        torch.testing.assert_close(fast(x, category, mask=mask), model(x, category, mask=mask))
    rows = x.flatten(0, 1)
    packed = [
        SetBatch(rows, torch.tensor(offsets, device=cuda))
        for offsets in ([0, 40, 80, 120], [0, 1, 100, 120])
    ]
    fast = captured(model, packed[0], category)
    with torch.no_grad():
        for sets in packed:
            torch.testing.assert_close(fast(sets, category).rows, model(sets, category).rows)


def _replace(model: nn.Module) -> None:
    head: Any = model.get_submodule("head.linears.0")
    head.weight = nn.Parameter(torch.ones_like(head.weight))


CHANGES: dict[str, Any] = {
    "in place": lambda model: model.head.linears[0].weight.mul_(2),
    "by another": _replace,
    "a statistic": lambda model: model.head.norms[0].running_mean.add_(1),
    "another type": lambda model: model.double(),
    "fused": lambda model: model.fuse(),
    "in training": lambda model: model.train(),
}


@gpu
@pytest.mark.parametrize("how", CHANGES)
@torch.no_grad()
def test_a_model_that_changes_is_to_be_captured_again(how: str, cuda: torch.device) -> None:
    model, x = create_model("dumlp_pin_digits").eval().to(cuda), torch.rand(2, 9, 3, device=cuda)
    fast = captured(model, x)
    fast(x)
    CHANGES[how](model)
    with pytest.raises(RuntimeError, match=r"^the model has changed since [^\n]*$"):
        fast(x)


@gpu
def test_other_models_do_not_take_its_memory(cuda: torch.device) -> None:
    """What kernels made of the weights stays, though they would make it anew by now."""
    model, x = create_model("dumlp_pin_digits").eval().to(cuda), torch.rand(2, 9, 3, device=cuda)
    fast = captured(model, x)
    expected = fast(x).clone()
    model.eval()  # forgets it
    for exponent in range(9, 24):
        torch.full((1 << exponent,), torch.nan, device=cuda)
    assert torch.equal(fast(x), expected)


@gpu
def test_the_next_answer_lies_where_the_last_one_did(cuda: torch.device) -> None:
    model = create_model("dumlp_pin_digits").eval().to(cuda)
    with torch.inference_mode():
        fast = captured(model, torch.rand(1, 9, 3, device=cuda))
    first = fast(torch.rand(1, 9, 3, device=cuda))
    assert fast(torch.rand(1, 9, 3, device=cuda)) is first
    assert not first.requires_grad
