"""Static quantisation to 8 bits, by onnxruntime.

Weights are quantised per output channel and symmetrically, activations by the least and largest
values that occur on the calibration batches. Weights have 7 of the 8 bits: on x86 processors
without VNNI, sums of 8-bit products overflow, silently, and cost far more than that bit. What
linear layers put out, a classifier's scores among them, stays in single precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from rsprune.errors import ExportError, InvalidParameterError
from rsprune.runtimes.batches import Inputs, tensors_of
from rsprune.runtimes.onnx import Session, valid
from rsprune.runtimes.program import reason
from rsprune.runtimes.quiet import quiet
from rsprune.shadow import Arguments


def calibration(model: nn.Module, inputs: Inputs, batches: Any) -> list[Arguments]:
    """Calibration batches as arguments of ``model``; none, or what is none, is refused.

    Args:
        model: the model.
        inputs: its example inputs, as which every batch has to be.
        batches: what was given.
    """
    remedy = "Pass batches of inputs, e.g. int8=[images for images, _ in loader]."
    if not hasattr(batches, "__iter__"):
        raise InvalidParameterError("export", "int8", "batches of inputs", batches, remedy)
    found = [Inputs("export", model, batch).arguments for batch in batches]
    expected = _sizes(inputs.arguments)
    for batch in found:
        if _sizes(batch) != expected:
            allowed = f"batches as example_inputs, inputs of {expected}"
            raise InvalidParameterError("export", "int8", allowed, _sizes(batch), remedy)
    if not found:
        raise ExportError(f"There is no calibration data, which int8 needs. {remedy}")
    return found


def _sizes(batch: Arguments) -> str:
    """The sizes of the tensors, but for the first dimension, which is the batch."""
    shapes = (tuple(tensor.shape)[1:] for tensor in tensors_of(batch))
    return " and ".join("x".join(map(str, shape)) or "one number" for shape in shapes)


def quantise(data: bytes, batches: Sequence[Arguments]) -> bytes:
    """An ONNX file in 8 bits.

    Args:
        data: the file in single precision.
        batches: arguments of its model, typical ones.
    """
    onnx, tools = import_module("onnx"), import_module("onnxruntime.quantization")
    session = Session(data)
    reader = _reader(tools, (session.feed(*args, **kwargs) for args, kwargs in batches))
    with TemporaryDirectory() as directory:
        path = Path(directory) / "int8.onnx"
        try:
            with quiet():
                tools.quantize_static(
                    onnx.load_from_string(data), path, reader,
                    quant_format=tools.QuantFormat.QDQ,
                    activation_type=tools.QuantType.QUInt8, weight_type=tools.QuantType.QInt8,
                    per_channel=True, reduce_range=True,
                    extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]},
                )  # fmt: skip
            proto = onnx.load(path)
            if not any(node.op_type == "QuantizeLinear" for node in proto.graph.node):
                raise ExportError(
                    "onnxruntime finds nothing to quantise in the model. Is it in single precision?"
                )
            return valid(proto)
        except ExportError:
            raise
        except Exception as error:
            raise ExportError(f"onnxruntime cannot quantise the model: {reason(error)}.") from error


def _reader(tools: Any, feeds: Iterator[dict[str, Any]]) -> Any:
    """The batches, as onnxruntime asks for them."""

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Any] | None:
            return next(feeds, None)

    return Reader()
