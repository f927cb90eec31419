"""Ways out: a model as an ONNX file or a `torch.export` archive, for programs without this one."""

from dumlp_pin.export.archive import export_archive
from dumlp_pin.export.onnx import export_onnx

__all__ = ["export_archive", "export_onnx"]
