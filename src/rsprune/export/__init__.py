"""Hands a model over to other runtimes."""

from rsprune.export.to_onnx import Exported, export_onnx

__all__ = ["Exported", "export_onnx"]
