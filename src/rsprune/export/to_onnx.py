"""``export_onnx``: a model as one ONNX file, which is only written if it computes the same.

The file is made by torch's exporter, with the weights inside and a batch of any size; it is
checked by onnx and run by onnxruntime against the model before it takes its name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rsprune.errors import ExportError, InvalidParameterError
from rsprune.export.batches import Inputs
from rsprune.export.parity import largest_difference
from rsprune.export.quiet import quiet
from rsprune.files import write_atomic
from rsprune.metrics.latency import evaluating
from rsprune.shadow import bind, check_devices, check_model

TOLERANCE = 1e-4  # relative to the largest output
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        path: where.
        size: in bytes.
        difference: the largest between the outputs of model and file, relative to the largest
            output.
        batches: the batch sizes on which they were compared.
    """

    path: Path
    size: int
    difference: float
    batches: tuple[int, ...]


def export_onnx(
    model: nn.Module,
    example_inputs: Any,
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> Exported:
    """Write ``model``, in evaluation mode, to an ONNX file that takes batches of any size.

    The model stays as it was. Nothing is written unless the file is valid and its outputs are
    those of the model, within 1e-4 of the largest, on the example inputs and on a second batch
    size.

    Args:
        model: any module that torch can export.
        example_inputs: a tensor; a tuple of positional arguments; a dict of keyword arguments. The
            first dimension of the first tensor is the batch, as is that of every other tensor of
            this size.
        path: the file to write.
        force: replace a file that is there already.
        metadata: texts to put into the file, by name; rsprune's version is added.

    Raises:
        ExportError: if the model cannot be exported or the file computes something else.
        StorageError: if the file could not be written.
    """
    check_model("export_onnx", model)
    inputs = Inputs(model, bind("export_onnx", model, example_inputs))
    check_devices("export_onnx", model, inputs.arguments)
    target = _checked(Path(path), force)
    onnx = _packages()
    texts = {"rsprune": version("rsprune"), **(metadata or {})}
    with evaluating(model), torch.no_grad():
        proto = _converted(model, inputs)
        onnx.helper.set_model_props(proto, texts)
        data = _checked_bytes(onnx, proto)
        sizes = (inputs.batch, inputs.other)
        difference = max(largest_difference(model, data, inputs.of(size)) for size in sizes)
    if not difference <= TOLERANCE:  # NaN neither
        raise ExportError(
            f"The ONNX file would not compute what the model computes: onnxruntime's outputs "
            f"differ by {difference:.2g} of the largest, and {TOLERANCE:g} is allowed. Nothing was "
            "written. Is the model free of randomness and in double or single precision?"
        )
    write_atomic(target, data)
    return Exported(target, len(data), difference, sizes)


def _checked(target: Path, force: bool) -> Path:
    """Refuse a path that cannot be used, before the work."""
    if target.is_dir() or not target.parent.is_dir():
        raise InvalidParameterError(
            "export_onnx",
            "path",
            "a file in a directory that exists",
            str(target),
            "Make it first.",
        )
    if target.exists() and not force:
        raise ExportError(f"'{target}' exists already. Replace it with force=True (or --force).")
    return target


def _packages() -> Any:
    """The onnx package, once all that an export needs is there."""
    try:
        for name in _PACKAGES:
            import_module(name)
    except ModuleNotFoundError as error:
        raise ExportError(
            f"ONNX export needs a package that is not installed ({error.name}). "
            'Install it with: pip install "rsprune[export]"'
        ) from error
    return import_module("onnx")


def _converted(model: nn.Module, inputs: Inputs) -> Any:
    args, kwargs = inputs.of(max(inputs.batch, 2))  # torch takes a batch of one for a constant
    try:
        with quiet():
            program = torch.onnx.export(
                model, args, kwargs=kwargs, dynamo=True, dynamic_shapes=inputs.dynamic(),
                external_data=False, verbose=False,
            )  # fmt: skip
            assert program is not None  # it is None for the older exporter alone
            return program.model_proto
    except Exception as error:
        raise ExportError(
            f"The model cannot be exported to ONNX: {_reason(error)}. Nothing was written."
        ) from error


def _checked_bytes(onnx: Any, proto: Any) -> bytes:
    try:
        onnx.checker.check_model(proto, full_check=True)
        data: bytes = proto.SerializeToString()
    except Exception as error:
        raise ExportError(
            f"The exported model is not valid ONNX: {_reason(error)}. Nothing was written."
        ) from error
    return data


def _reason(error: BaseException) -> str:
    """The first line of what was wrong in the first place; torch wraps it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")
