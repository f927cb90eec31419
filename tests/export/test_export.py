"""Exported models, run as those run them who have no more than the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from dumlp_pin import AggregationBlock, create_model
from dumlp_pin.export import export_archive, export_onnx
from dumlp_pin.export.onnx import has_exporter
from dumlp_pin.export.program import check_agreement, draw_inputs
from dumlp_pin.models import AnomalyDetector, PinClassifier, PinSegmenter, Stage
from tests.contract import Subject

pytestmark = pytest.mark.skipif(not has_exporter(), reason="this PyTorch is too old for ONNX")

ONE_SOFTMAX = ("softmax", None)
BRANCHES = [(8, 4), (8, 4)]


def _segmenter() -> PinSegmenter:
    told = Stage([], (3, 8), (5, 8), (8, 8))
    stage = Stage(BRANCHES, (8, 8), (16, 8), (8,))
    return PinSegmenter(3, 6, [told, stage], ONE_SOFTMAX, num_categories=5)


def _anomaly() -> AnomalyDetector:
    extractor = AggregationBlock(6, BRANCHES, ("softmax", "squash"))
    return AnomalyDetector(extractor, width=6)


def _classifier() -> PinClassifier:
    return PinClassifier(3, 5, BRANCHES, ("softmax", "elu"), head=(8,))


def _trained(make: Callable[[], nn.Module]) -> nn.Module:
    """As training could have left it: no norm is at its start."""
    return Subject("", make, (), per_element=False).build(dtype=torch.float32)


Exported = tuple[nn.Module, Path]


@pytest.fixture(scope="module", params=[_segmenter, _anomaly])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    path = tmp_path_factory.mktemp("export") / "model.onnx"
    model = _trained(request.param)
    difference = export_onnx(model, path, class_names=["a", "b"], expects="points")
    assert difference < 1e-5
    return model, path


def _in_onnx_runtime(path: Path, inputs: dict[str, Tensor]) -> Tensor:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    return torch.from_numpy(output)


@pytest.mark.parametrize("sizes", [[50], [1, 1], [3, 200, 17, 1, 8]])
def test_onnx_takes_any_number_and_size_of_sets(exported: Exported, sizes: list[int]) -> None:
    model, path = exported
    inputs = draw_inputs(model, sizes, seed=1)
    mask = inputs["mask"]
    with torch.inference_mode():
        expected = model(**inputs)
    output = _in_onnx_runtime(path, inputs)
    if output.shape[:2] == mask.shape:
        output, expected = output[mask], expected[mask]
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


def test_onnx_says_what_it_is_and_nothing_of_the_computer_it_is_from(exported: Exported) -> None:
    model, path = exported
    proto = onnx.load(path)
    about = {each.key: each.value for each in proto.metadata_props}
    assert json.loads(about["class_names"]) == ["a", "b"]
    assert (about["model"], about["expects"]) == (type(model).__name__, "points")
    axes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*proto.graph.input, *proto.graph.output)
    }
    assert axes["mask"] == ["sets", "elements"]
    assert axes["x"][:2] == ["sets", "elements"]
    assert axes["logits"][0] == "sets"
    assert {opset.domain for opset in proto.opset_import} == {""}
    assert str(Path(__file__).parents[2]).encode() not in path.read_bytes()


def test_an_archive_needs_pytorch_alone(tmp_path: Path) -> None:
    model = _trained(_classifier)
    assert export_archive(model, tmp_path / "model.pt2") < 1e-6
    program = torch.export.load(tmp_path / "model.pt2").module()
    for sizes in ([5], [9, 2, 30]):
        inputs = draw_inputs(model, sizes, seed=2)
        torch.testing.assert_close(program(**inputs), model(**inputs))


def test_exporting_changes_nothing_of_the_model(tmp_path: Path) -> None:
    model = create_model("dumlp_pin_digits").double().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    export_archive(model, tmp_path / "model.pt2")
    assert model.training
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


def test_a_copy_that_computes_something_else_is_refused() -> None:
    model = _trained(_classifier)
    assert check_agreement(model, lambda inputs: model(**inputs), "itself") == 0
    with pytest.raises(ValueError, match=r"PinClassifier in bf16 is off by .*, rounding explains"):
        check_agreement(model, lambda inputs: model(**inputs).bfloat16().float(), "bf16")
    with pytest.raises(ValueError, match=r"PinClassifier in itself is off by nan"):
        check_agreement(model, lambda inputs: model(**inputs) * torch.nan, "itself")


def test_what_cannot_be_exported_says_why_in_one_line(tmp_path: Path) -> None:
    class Choosy(PinClassifier):
        def forward(self, x: Any, mask: Any = None) -> Tensor:
            if float(x.sum()) > 0:
                return super().forward(x, mask)
            return super().forward(-x, mask)

    model = Choosy(3, 5, BRANCHES, ONE_SOFTMAX)
    for export in (export_onnx, export_archive):
        with pytest.raises(ValueError, match=r"^Choosy cannot be exported: [^\n]+$"):
            export(model, tmp_path / "file")
    with pytest.raises(TypeError, match=r"Flatten does not say what it takes"):
        export_archive(nn.Flatten(), tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_shapes_of_inputs_are_those_of_the_model() -> None:
    images = draw_inputs(create_model("dumlp_pin_celeba"), [2, 1])
    assert tuple(images["x"].shape) == (2, 2, 3, 12, 10)
    assert bool(torch.isnan(images["x"][1, 1]).all())
    assert np.array_equal(images["mask"], [[True, True], [True, False]])
