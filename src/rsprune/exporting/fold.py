"""Batch norms folded into the convolution or linear layer before them, for inference.

Pairs are found in the captured program, where it is plain who reads what: a batch norm follows a
layer directly if nothing else reads the layer's output. The weights of a pair are read by it alone,
so that a module which is called twice stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from rsprune.runtimes.batches import Inputs
from rsprune.runtimes.program import capture
from rsprune.shadow import as_inputs

_aten = torch.ops.aten
_PLAIN = {
    _aten.linear.default, _aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default,
    _aten.conv1d.padding, _aten.conv2d.padding, _aten.conv3d.padding,
}  # fmt: skip
_TRANSPOSED = {
    _aten.conv_transpose1d.default, _aten.conv_transpose2d.input, _aten.conv_transpose3d.input,
}  # fmt: skip
_GROUPS = 6  # the place of this argument in a transposed convolution


def fold(program: ExportedProgram, inputs: Inputs) -> tuple[ExportedProgram, int]:
    """A program without the batch norms that follow a layer directly, and how many those were.

    Args:
        program: of a model in evaluation mode; it is left as it was.
        inputs: those it was captured with.
    """
    module = program.module(check_guards=False)
    assert isinstance(module, GraphModule)
    count = 0
    for node in list(module.graph.nodes):
        pair = _pair(node)
        if pair is not None:
            _merge(module, pair)
            count += 1
    if not count:
        return program, 0
    _sweep(module)
    # torch gives the arguments other names where the model takes any number of them
    renamed = Inputs("export", module, as_inputs(inputs.arguments))
    return capture(module, renamed), count


@dataclass(frozen=True)
class _Pair:
    layer: Node
    norm: Node

    @property
    def weight(self) -> Node:
        node: Node = _argument(self.layer, 1)
        return node

    @property
    def bias(self) -> Node | None:
        node: Node | None = _argument(self.layer, 2)
        return node


def _pair(norm: Node) -> _Pair | None:
    """A batch norm with the layer it can be folded into."""
    if norm.target is not _aten.batch_norm.default or _argument(norm, 5):  # of its own batch
        return None
    layer = norm.args[0]
    if not isinstance(layer, Node) or layer.target not in _PLAIN | _TRANSPOSED:
        return None
    pair = _Pair(layer, norm)
    tensors = [pair.weight, pair.bias, *norm.args[1:5]]
    alone = len(layer.users) == 1 and all(_read_once(node) for node in tensors if node is not None)
    return pair if alone and _along_channels(pair) else None


def _read_once(node: Any) -> bool:
    return isinstance(node, Node) and node.op == "get_attr" and len(node.users) == 1


def _along_channels(pair: _Pair) -> bool:
    """Whether what the norm takes for channels, dimension 1, are the layer's outputs.

    They are not for a linear layer on sequences, nor for a convolution of one unbatched image.
    """
    weight, output = (node.meta["val"] for node in (pair.weight, pair.layer))
    return bool(weight.dim() == output.dim())


def _merge(module: GraphModule, pair: _Pair) -> None:
    """Give the layer the weights that make up for the norm, and take the norm out."""
    _, gamma, beta, mean, variance, _, _, epsilon, *_ = pair.norm.args
    old = _value(module, pair.weight)
    scale = (_value(module, variance).double() + float(epsilon)).rsqrt()  # type: ignore[arg-type]
    if gamma is not None:
        scale = scale * _value(module, gamma).double()
    shift = -_value(module, mean).double()
    if pair.bias is not None:
        shift = shift + _value(module, pair.bias).double()
    shift = shift * scale
    if beta is not None:
        shift = shift + _value(module, beta).double()

    transposed = pair.layer.target in _TRANSPOSED
    groups = int(_argument(pair.layer, _GROUPS) or 1) if transposed else 1
    weight = _scaled(old.double(), scale, transposed=transposed, groups=groups)
    name = str(pair.weight.target)
    _assign(module, name, weight.to(old.dtype))
    bias = str(pair.bias.target) if pair.bias is not None else _free_name(module, name)
    _assign(module, bias, shift.to(old.dtype))
    with module.graph.inserting_before(pair.layer):
        reader = module.graph.get_attr(bias)
    pair.layer.args = (*pair.layer.args[:2], reader, *pair.layer.args[3:])
    pair.norm.replace_all_uses_with(pair.layer)
    module.graph.erase_node(pair.norm)


def _scaled(weight: Tensor, scale: Tensor, *, transposed: bool, groups: int) -> Tensor:
    """A weight whose outputs are multiplied by ``scale``."""
    if not transposed:  # (K, C / groups, ...)
        return weight * scale.view(-1, *[1] * (weight.dim() - 1))
    # (C, K / groups, ...): output k of group g is in column k of the rows of g
    rows = weight.view(groups, -1, *weight.shape[1:])
    return (rows * scale.view(groups, 1, -1, *[1] * (weight.dim() - 2))).view_as(weight)


def _argument(node: Node, place: int) -> Any:
    return node.args[place] if place < len(node.args) else None


def _value(module: GraphModule, node: Any) -> Tensor:
    path, _, last = str(node.target).rpartition(".")
    value: Tensor = getattr(module.get_submodule(path), last)
    return value.detach()


def _assign(module: GraphModule, name: str, value: Tensor) -> None:
    """Put a new parameter in the place of ``name``; the old one, the model's own, is untouched."""
    path, _, last = name.rpartition(".")
    setattr(module.get_submodule(path), last, nn.Parameter(value, requires_grad=False))


def _free_name(module: GraphModule, weight: str) -> str:
    """A name for the bias of a layer that had none."""
    path, _, last = weight.rpartition(".")
    home = module.get_submodule(path)
    name = "bias" if last == "weight" else f"{last}_bias"
    while hasattr(home, name):
        name += "_"
    return f"{path}.{name}" if path else name


def _sweep(module: GraphModule) -> None:
    """Drop the tensors that nothing reads any more."""
    for node in list(module.graph.nodes):
        if node.op == "get_attr" and not node.users:
            module.graph.erase_node(node)
    read = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    for name in [name for name, _ in (*module.named_parameters(), *module.named_buffers())]:
        if name not in read:
            path, _, last = name.rpartition(".")
            delattr(module.get_submodule(path), last)
    module.recompile()
