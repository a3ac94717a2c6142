"""Programs as ONNX, made by torch's exporter, checked by onnx and run by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from rsprune.errors import ExportError
from rsprune.runtimes.batches import Inputs, tensors_of
from rsprune.runtimes.lowerings import translations
from rsprune.runtimes.program import reason
from rsprune.runtimes.quiet import quiet

_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def require_onnx() -> None:
    """Refuse to begin where a package is missing."""
    try:
        for name in _PACKAGES:
            import_module(name)
    except ModuleNotFoundError as error:
        raise ExportError(
            f"ONNX needs a package that is not installed ({error.name}). "
            'Install it with: pip install "rsprune[export]".'
        ) from error


def to_onnx(program: ExportedProgram, inputs: Inputs) -> bytes:
    """A program as a valid ONNX file, for batches of any size.

    Args:
        program: from :func:`rsprune.runtimes.program.capture`.
        inputs: those it was captured with.
    """
    require_onnx()
    try:
        with quiet():
            converted = torch.onnx.export(
                program, dynamo=True, dynamic_shapes=inputs.dynamic(), external_data=False,
                verbose=False, custom_translation_table=translations(),
            )  # fmt: skip
            assert converted is not None  # it is None for the older exporter alone
            proto = converted.model_proto
            for graph in (proto.graph, *proto.functions):
                _strip(graph)
            return valid(proto)
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"The model cannot be exported to ONNX: {reason(error)}.") from error


def _strip(graph: Any) -> None:
    """Drop the exporter's notes: they tell where the model's source code is, and take space."""
    tensors = ("input", "output", "value_info", "initializer")  # those of functions are names
    lists = [getattr(graph, name, ()) for name in tensors]
    parts = [part for parts in lists for part in parts if hasattr(part, "metadata_props")]
    for part in (graph, *graph.node, *parts):
        del part.metadata_props[:]
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                _strip(inner)


def valid(proto: Any, metadata: Mapping[str, str] | None = None) -> bytes:
    """An ONNX model as bytes, once onnx finds nothing wrong with it.

    Args:
        proto: the model.
        metadata: texts to put into it, by name.
    """
    onnx = import_module("onnx")
    if metadata:
        onnx.helper.set_model_props(proto, dict(metadata))
    try:
        onnx.checker.check_model(proto, full_check=True)
        data: bytes = proto.SerializeToString()
    except Exception as error:
        raise ExportError(f"The exported model is not valid ONNX: {reason(error)}.") from error
    return data


class Session:
    """An ONNX file that is called like the model it was made from.

    Args:
        data: the file.
        threads: how many to use; None leaves it to onnxruntime.
        arena: keep the memory of a run for the next one, as onnxruntime usually does.
    """

    def __init__(self, data: bytes, *, threads: int | None = None, arena: bool = True) -> None:
        require_onnx()
        runtime = import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 4  # errors are raised, and need no printing
        options.enable_cpu_mem_arena = arena
        if threads is not None:
            options.intra_op_num_threads = threads
        # Else its threads go on waiting busily after a run, in the way of whatever comes next.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        try:
            self._session = runtime.InferenceSession(
                data, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise _failed(error) from error
        self._names = [entry.name for entry in self._session.get_inputs()]

    def __call__(self, *args: Any, **kwargs: Any) -> list[Tensor]:
        """The outputs, on the device of the inputs."""
        device = tensors_of((args, kwargs))[0].device
        outputs = self.run(self.feed(*args, **kwargs))
        return [torch.as_tensor(output).to(device) for output in outputs]

    def run(self, feed: Mapping[str, Any]) -> list[Any]:
        """The outputs as arrays, for arrays by their names in the file."""
        try:
            outputs: list[Any] = self._session.run(None, feed)
        except Exception as error:
            raise _failed(error) from error
        return outputs

    def feed(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The tensors among the arguments as arrays, by their names in the file."""
        named = {name: value for name, value in kwargs.items() if name in self._names}
        others = tensors_of((args, {name: kwargs[name] for name in kwargs if name not in named}))
        rest = [name for name in self._names if name not in named]
        feed = {**named, **dict(zip(rest, others, strict=True))}
        return {name: tensor.detach().cpu().numpy() for name, tensor in feed.items()}


def _failed(error: Exception) -> ExportError:
    return ExportError(f"onnxruntime cannot run the exported model: {reason(error)}.")
