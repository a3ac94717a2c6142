"""Whether an ONNX file computes what a model computes, in onnxruntime."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rsprune.errors import ExportError
from rsprune.shadow import Arguments


def largest_difference(model: nn.Module, data: bytes, arguments: Arguments) -> float:
    """The largest difference between the outputs, relative to the largest output of the model.

    Args:
        model: in evaluation mode.
        data: the ONNX file.
        arguments: for both.
    """
    args, kwargs = arguments
    expected = [x for x in tree_leaves(model(*args, **kwargs)) if isinstance(x, Tensor)]
    found = _run(data, [x for x in tree_leaves(arguments) if isinstance(x, Tensor)])
    shapes = [tuple(x.shape) for x in expected], [tuple(y.shape) for y in found]
    if shapes[0] != shapes[1]:
        raise ExportError(
            f"The ONNX file gives outputs of the shapes {shapes[1]}, the model {shapes[0]}. "
            "Nothing was written."
        )
    return max(map(_difference, expected, found), default=0.0)


def _run(data: bytes, inputs: list[Tensor]) -> list[Any]:
    runtime = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    try:
        session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        names = [x.name for x in session.get_inputs()]
        feed = dict(zip(names, (x.detach().cpu().numpy() for x in inputs), strict=True))
        outputs: list[Any] = session.run(None, feed)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(
            f"onnxruntime cannot run the exported model: {reason} Nothing was written."
        ) from error
    return outputs


def _difference(expected: Tensor, found: Any) -> float:
    want = expected.detach().cpu().double()
    if not want.numel():
        return 0.0
    largest = want.abs().max().item()
    gap = (want - want.new_tensor(found)).abs().max().item()
    return gap / largest if largest else gap
