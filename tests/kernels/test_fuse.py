from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from dumlp_pin import BroadcastBlock, create_model
from dumlp_pin.batchnorm import BatchNorm
from tests.contract import BLOCKS, Subject

every_block = pytest.mark.parametrize("subject", BLOCKS, ids=lambda s: s.name)


@every_block
@pytest.mark.parametrize("form", ["packed", "masked"])
def test_fused_blocks_compute_the_same(subject: Subject, form: str) -> None:
    module, sample = subject.build(), subject.draw([7, 1, 4])
    inputs = getattr(sample, form)()
    expected = subject.per_set(module(**inputs), sample.sizes)
    fused: Any = module
    assert fused.fuse() is module
    assert not any(isinstance(part, BatchNorm) for part in module.modules())
    for a, b in zip(subject.per_set(module(**inputs), sample.sizes), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@every_block
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_error_of_fused_blocks_is_that_of_rounding(subject: Subject, dtype: torch.dtype) -> None:
    sizes = [300, 40]
    exact, module = subject.build(), subject.build(dtype=dtype)
    expected = joined(subject, exact(**subject.draw(sizes).packed()), sizes)
    inputs = subject.draw(sizes, dtype=dtype).packed()
    plain = (joined(subject, module(**inputs), sizes) - expected).norm()
    fused: Any = module
    error = (joined(subject, fused.fuse()(**inputs), sizes) - expected).norm()
    assert error <= 2 * plain + 4 * torch.finfo(dtype).eps * expected.norm()


def joined(subject: Subject, output: Any, sizes: list[int]) -> torch.Tensor:
    parts = [part.flatten() for part in subject.per_set(output, sizes)]
    return torch.cat(parts).double().detach()


@pytest.mark.parametrize(
    "name", ["dumlp_pin_modelnet40", "dumlp_pin_shapenetpart_s", "pointnet_modelnet40"]
)
def test_models(name: str) -> None:
    model = create_model(name).eval()
    inputs: dict[str, Any] = {"x": torch.randn(2, 20, model.in_features)}
    if getattr(model, "num_categories", 0):
        inputs["category"] = torch.tensor([0, 1])
    expected = model(**inputs).detach()
    count = sum(isinstance(part, BatchNorm) for part in model.modules())
    torch.testing.assert_close(model.fuse()(**inputs), expected, rtol=1e-3, atol=1e-4)
    assert sum(isinstance(part, BatchNorm) for part in model.modules()) < count
    assert not any(parameter.requires_grad for parameter in model.parameters())
    again = copy.deepcopy(model.fuse())
    assert torch.equal(again(**inputs), model(**inputs))


def test_a_program_of_a_fused_model_has_no_norms() -> None:
    model = create_model("dumlp_pin_digits").eval().fuse()
    program = torch.export.export(model, (torch.rand(2, 9, 3),))
    assert not any("batch_norm" in str(node.target) for node in program.graph.nodes)


@torch.inference_mode()
def test_weights_fused_in_inference_mode_are_like_others() -> None:
    with torch.inference_mode(False):
        model = create_model("dumlp_pin_digits").eval()
    assert not any(parameter.is_inference() for parameter in model.fuse().parameters())


def test_training_is_over() -> None:
    model = create_model("dumlp_pin_digits").eval().fuse()
    with pytest.raises(RuntimeError, match=r"^this PinClassifier is fused for inference: [^\n]*$"):
        model.train()
    assert not any(part.training for part in model.modules())
    with pytest.raises(RuntimeError, match=r"^this MLP is fused for inference: [^\n]*$"):
        nn.Sequential(model.head).train()
    assert model.eval() is model


def test_a_module_in_training_is_not_fused() -> None:
    block = BroadcastBlock((6, 16), (4, 8), (16, 5))
    with pytest.raises(RuntimeError, match=r"^fuse\(\) is for inference: call eval\(\) first$"):
        block.fuse()
    assert isinstance(block.norm, BatchNorm)
