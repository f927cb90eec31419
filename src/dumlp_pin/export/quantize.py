"""int8: weights and activations of every linear layer and convolution in eight bits.

Scales are fixed beforehand, from calibration sets. Scales that each batch chooses for itself would
make the answer for one set depend on the others of its batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dumlp_pin._errors import need
from dumlp_pin.export.program import Inputs


def quantize(proto: Any, calibration: Iterable[Inputs]) -> Any:
    """The `onnx.ModelProto` in int8; `calibration` are inputs as the model will meet them.

    Only products with weights are quantised. The product of the branches stays in float32: most
    weights of a softmax over a large set are smaller than one step of eight bits.
    """
    onnx, runtime = need("onnx", "onnx"), need("onnxruntime.quantization", "onnx")
    layers = [node.name for node in proto.graph.node if _has_weights(node, proto.graph)]
    with tempfile.TemporaryDirectory() as folder:
        prepared, written = Path(folder) / "prepared.onnx", Path(folder) / "int8.onnx"
        # Says that the model was prepared; without that word, quantisation warns of it.
        runtime.quant_pre_process(proto, prepared, skip_optimization=True, skip_symbolic_shape=True)
        runtime.quantize_static(
            prepared,
            written,
            _reader(calibration),
            nodes_to_quantize=layers,
            per_channel=True,
            activation_type=runtime.QuantType.QInt8,
            weight_type=runtime.QuantType.QInt8,
        )
        quantized = onnx.load(written)
    del quantized.graph.value_info[:]
    del quantized.metadata_props[:]
    quantized.metadata_props.extend(proto.metadata_props)
    return quantized


def _has_weights(node: Any, graph: Any) -> bool:
    weights = {tensor.name for tensor in graph.initializer}
    return node.op_type in ("MatMul", "Gemm", "Conv") and node.input[1] in weights


def _reader(calibration: Iterable[Inputs]) -> Any:
    """The form in which ONNX Runtime asks for calibration inputs."""

    class Reader(need("onnxruntime.quantization", "onnx").CalibrationDataReader):
        def __init__(self, inputs: Iterator[Inputs]) -> None:
            self.inputs = inputs

        def get_next(self) -> dict[str, Any] | None:
            inputs = next(self.inputs, None)
            return inputs and {name: value.numpy() for name, value in inputs.items()}

    return Reader(iter(calibration))
