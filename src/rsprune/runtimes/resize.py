"""The ONNX file of a model with other widths, from that of the full one: quick, for timing alone.

To convert a network takes half a minute; to change the sizes of its weights, a fraction of a
second. The weights keep no meaning, but cost what they will cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
from torch import nn
from torch.nn.modules.conv import _ConvNd

from rsprune.errors import ExportError
from rsprune.shadow import named_tensors


def resized(data: bytes, full: nn.Module, slim: nn.Module) -> bytes:
    """An ONNX file with the shapes of ``slim``, from that of ``full``.

    It need not run: a width that the file holds in other places than its weights stays what it was.
    On some processors onnxruntime then runs all the same, with images in the place of the missing
    channels: its outputs are too few.

    Raises:
        ExportError: if a weight is not in the file as the model has it.
    """
    onnx = import_module("onnx")
    proto = onnx.load_from_string(data)
    graph = proto.graph
    del graph.value_info[:]  # which hold widths
    known = {tensor.name: tensor for tensor in graph.initializer}
    new = {name: tuple(tensor.shape) for name, tensor in named_tensors(slim).items()}
    for name, tensor in named_tensors(full).items():
        if tuple(tensor.shape) == new[name]:
            continue
        if name in known and tuple(known[name].dims) == tuple(tensor.shape):
            _resize(onnx, known[name], new[name])
        elif tensor.dim() > 1:  # norms have become part of other layers
            raise ExportError(f"The file does not hold {name} as it is in the model.")
    groups = _groups(full, slim)
    makers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type in ("Conv", "ConvTranspose") and node.input[1] in known:
            _convolution(onnx, node, known, groups.get(node.input[1]))
        flat = makers.get(node.input[0]) if node.op_type == "Gemm" else None
        if flat is not None and flat.op_type == "Reshape" and node.input[1] in known:
            _flatten(onnx, flat, known, known[node.input[1]].dims[1])
    resized: bytes = proto.SerializeToString()
    return resized


def _groups(full: nn.Module, slim: nn.Module) -> dict[str, int]:
    """By weight, the groups of convolutions that have fewer of them now."""
    before = dict(full.named_modules())
    return {
        f"{name}.weight": module.groups
        for name, module in slim.named_modules()
        if isinstance(module, _ConvNd) and module.groups != before[name].groups
    }


def _convolution(onnx: Any, node: Any, known: Mapping[str, Any], groups: int | None) -> None:
    """Make a convolution's groups, and the bias that a norm has become, agree with its weight."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if groups is not None:
        attributes["group"].i = groups
    weight = known[node.input[1]].dims
    outputs = weight[0]
    if node.op_type == "ConvTranspose":
        outputs = weight[1] * (attributes["group"].i if "group" in attributes else 1)
    if len(node.input) > 2 and node.input[2] in known and known[node.input[2]].dims[0] != outputs:
        _resize(onnx, known[node.input[2]], (outputs,))


def _flatten(onnx: Any, node: Any, known: Mapping[str, Any], inputs: int) -> None:
    """Make the shape that a linear layer reads agree with its weight, (outputs, inputs)."""
    if node.input[1] in known:
        shape = onnx.numpy_helper.to_array(known[node.input[1]]).copy()
        shape[-1] = inputs
        known[node.input[1]].CopyFrom(onnx.numpy_helper.from_array(shape, node.input[1]))


def _resize(onnx: Any, tensor: Any, shape: tuple[int, ...]) -> None:
    """Cut a tensor of the file to a smaller shape."""
    array = onnx.numpy_helper.to_array(tensor)[tuple(map(slice, shape))]
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
