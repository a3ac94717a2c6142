"""The files: ONNX, a ``torch.export`` program, safetensors.

Each format makes a file in memory and loads it again, so that what is compared with the model is
what will be written.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_flatten, tree_unflatten

from rsprune.errors import ExportError
from rsprune.runtimes.onnx import Session, valid
from rsprune.runtimes.program import reason
from rsprune.runtimes.quiet import quiet
from rsprune.structure.files import load, save

METADATA = "metadata.json"  # in a .pt2 file: torch.export.load(path, extra_files={METADATA: ""})
Texts = Mapping[str, str]


@dataclass(frozen=True)
class File:
    """A file that is not written yet.

    Attributes:
        data: its contents.
        run: the model it holds, called as the original is.
    """

    data: bytes
    run: Callable[..., Any]


Make = Callable[[Texts], File]
"""Makes a file with these texts in it; the long work is done."""


def onnx_file(converted: bytes, like: Any) -> Make:
    """For onnxruntime.

    Args:
        converted: the file, without texts.
        like: an output of the model.
    """

    def make(texts: Texts) -> File:
        data = valid(import_module("onnx").load_from_string(converted), texts)
        session = Session(data)

        def run(*args: Any, **kwargs: Any) -> Any:
            return _arranged(session(*args, **kwargs), like)

        return File(data, run)

    return make


def _arranged(outputs: list[Tensor], like: Any) -> Any:
    """A flat list of outputs in the structure of the model's own."""
    leaves, structure = tree_flatten(like)
    rest = iter(outputs)
    found = [next(rest, None) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return tree_unflatten(found, structure)


def pt2_file(program: ExportedProgram) -> Make:
    """For ``torch.export.load``."""
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # which tells where the model's source code is

    def make(texts: Texts) -> File:
        buffer = io.BytesIO()
        try:
            with quiet():
                torch.export.save(program, buffer, extra_files={METADATA: json.dumps(dict(texts))})
                buffer.seek(0)
                again = torch.export.load(buffer).module()
        except Exception as error:
            raise ExportError(f"torch.export cannot save the model: {reason(error)}.") from error
        return File(buffer.getvalue(), again)

    return make


def safetensors_file(model: nn.Module, full: nn.Module | None) -> Make:
    """For ``rsprune.load``, into ``full`` or, without it, into the model itself."""

    def make(texts: Texts) -> File:
        own = {"model": type(model).__qualname__}  # which save writes anyway
        others = dict(texts.items() - own.items())
        with TemporaryDirectory() as directory:
            path = Path(directory) / "model.safetensors"
            save(model, path, metadata=others)
            again = load(full or model, path).eval()
            return File(path.read_bytes(), again)

    return make
