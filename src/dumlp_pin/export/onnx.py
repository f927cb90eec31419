"""ONNX files: plain operators, any number and size of sets, checked in ONNX Runtime."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion

import dumlp_pin
from dumlp_pin._errors import need
from dumlp_pin._files import written_whole
from dumlp_pin.export.program import (
    Inputs,
    cannot_export,
    check_agreement,
    name_of,
    plain_copy,
    trace,
)

OPSET = 20
OLDEST_EXPORTER = "2.8"
AXES = ("sets", "elements")


def export_onnx(model: nn.Module, path: str | Path, **about: Any) -> float:
    """Write a model to one file; returns how far ONNX Runtime is from PyTorch, relatively.

    `about` is what `to_onnx` takes to describe the model.
    """
    need("onnxruntime", "onnx")  # said before the work that it is to check
    model = plain_copy(model)
    content = to_onnx(model, **about).SerializeToString(deterministic=True)
    difference = check_agreement(model, onnx_runner(content), "ONNX Runtime")
    with written_whole(Path(path)) as draft:
        draft.write_bytes(content)
    return difference


def has_exporter() -> bool:
    """Whether this PyTorch is new enough: older exporters stumble over batch norm."""
    return TorchVersion(torch.__version__) >= OLDEST_EXPORTER


def onnx_runner(content: bytes) -> Callable[[Inputs], Tensor]:
    """What stands in an ONNX file, as a function from inputs to output."""
    runtime = need("onnxruntime", "onnx")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(inputs: Inputs) -> Tensor:
        (output,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
        return torch.from_numpy(output)

    return run


def to_onnx(
    model: nn.Module,
    *,
    class_names: Sequence[str] = (),
    expects: str = "",
    output: str = "logits",
) -> Any:
    """The `onnx.ModelProto` of a model that is ready to evaluate.

    `expects` says what x holds, and how it is normalised. It goes into the file's metadata, with
    the model's name, the names of the classes and the versions of what wrote it.
    """
    onnx = need("onnx", "onnx")
    need("onnxscript", "onnx")
    if not has_exporter():
        raise RuntimeError(
            f"export to ONNX needs PyTorch {OLDEST_EXPORTER} or newer, this is {torch.__version__}"
        )
    program = trace(model)
    try:
        with _without_chatter():
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                output_names=[output],
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise cannot_export(model, error.__cause__ or error) from error
    assert exported is not None
    proto = exported.model_proto
    foreign = {opset.domain for opset in proto.opset_import} - {""}
    if foreign:
        raise ValueError(
            f"{name_of(model)} cannot be exported: it needs operators of {', '.join(foreign)}"
        )
    _strip(proto.graph)
    _name_axes(proto.graph)
    onnx.helper.set_model_props(
        proto,
        {
            "model": name_of(model),
            "task": str(getattr(model, "task", "")),
            "class_names": json.dumps(list(class_names)),
            "expects": expects,
            "dumlp_pin": dumlp_pin.__version__,
            "torch": torch.__version__,
            "onnx": onnx.__version__,
        },
    )
    return proto


def _strip(graph: Any) -> None:
    """Drop what the exporter notes down for its own debugging: half of a small file.

    Among it are stack traces with paths of this computer, which differ from one to the next, and
    shapes of intermediate results, which quantisation contradicts.
    """
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""
    del graph.value_info[:]


def _name_axes(graph: Any) -> None:
    x = next(value for value in graph.input if value.name == "x")
    axes = x.type.tensor_type.shape.dim
    known = {axis.dim_param: name for axis, name in zip(axes, AXES, strict=False)}
    for value in (*graph.input, *graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param in known:
                axis.dim_param = known[axis.dim_param]


@contextmanager
def _without_chatter() -> Iterator[None]:
    """The exporter warns of PyTorch's own deprecations, and logs that torchvision is not there."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning
            )
            yield
    finally:
        logger.setLevel(level)
