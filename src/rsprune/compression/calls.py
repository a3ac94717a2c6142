"""Where a model multiplies with its weights: every convolution and matrix product it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rsprune.shadow import Arguments, Observer, Shadow, storage_of

_aten = torch.ops.aten


@dataclass(frozen=True)
class Call:
    """A convolution or a matrix product, but for its numbers of channels.

    Attributes:
        batch: the number of inputs, or of rows of a matrix.
        image: height and width, for instance; empty for a matrix product.
        kernel, stride, padding, dilation, output_padding: of a convolution, along these.
        transposed: whether it is a transposed convolution.
        groups: of the channels; 0 if every input channel is one, as in a depthwise convolution.
        fan_out: the outputs of each group of a depthwise convolution.
        dtype: of the numbers.
    """

    batch: int
    image: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    transposed: bool
    groups: int
    fan_out: int
    dtype: torch.dtype

    def weight_shape(self, inputs: int, outputs: int) -> tuple[int, ...]:
        """The shape of its weight for these numbers of channels."""
        groups = self.groups or inputs
        if self.transposed:
            return inputs, outputs // groups, *self.kernel
        return outputs, inputs // groups, *self.kernel


class Side(NamedTuple):
    """How many channels a layer reads or makes: the size of a weight's dimension, so many times.

    ``elements`` are those of the layer's input or output for every channel.
    """

    dim: int
    times: float
    elements: float


class Use(NamedTuple):
    """A parameter as the weight of a call."""

    parameter: str
    call: Call
    inputs: Side
    outputs: Side


def find_uses(model: nn.Module, arguments: Arguments, *, real: bool) -> list[Use]:
    """The calls that ``model`` runs in evaluation mode, in their order."""
    with torch.inference_mode(False), sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        finder = _Finder(Shadow(model, arguments, real=real))
        finder.shadow.run(finder, training=False)
    return finder.uses


class _Finder(Observer):
    def __init__(self, shadow: Shadow) -> None:
        super().__init__()
        self.shadow = shadow
        self.uses: list[Use] = []
        parameters = {n: t for n, t in shadow.tensors.items() if isinstance(t, nn.Parameter)}
        self.names = {storage_of(parameter): name for name, parameter in parameters.items()}
        self.shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}

    def observe(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        del kwargs
        if func is _aten.convolution.default:
            self._convolution(out, *args)
        elif func is _aten.addmm.default:
            self._product(*args[1:3])
        elif func in (_aten.mm.default, _aten.bmm.default):  # of a batch with one weight, too
            self._product(*args[:2])

    def _convolution(
        self, out: Tensor, x: Tensor, weight: Tensor, _bias: Any, stride: Any, padding: Any,
        dilation: Any, transposed: bool, output_padding: Any, groups: int,
    ) -> None:  # fmt: skip
        name = self._name(weight)
        if name is None or self.shapes[name] != tuple(weight.shape):
            return
        depthwise = 1 < groups == x.shape[1]
        fan_out = out.shape[1] // groups
        call = Call(
            x.shape[0], tuple(x.shape[2:]), tuple(weight.shape[2:]), tuple(stride), tuple(padding),
            tuple(dilation), tuple(output_padding), transposed, 0 if depthwise else groups,
            fan_out if depthwise else 0, x.dtype,
        )  # fmt: skip
        size_in, size_out = x.numel() / x.shape[1], out.numel() / out.shape[1]
        if depthwise:
            inputs = Side(0, 1 if transposed else 1 / fan_out, size_in)
            outputs = Side(0, fan_out if transposed else 1, size_out)
        elif transposed:
            inputs, outputs = Side(0, 1, size_in), Side(1, groups, size_out)
        else:
            inputs, outputs = Side(1, groups, size_in), Side(0, 1, size_out)
        self.uses.append(Use(name, call, inputs, outputs))

    def _product(self, x: Tensor, weight: Tensor) -> None:
        """``x`` of shape (..., inputs) times ``weight`` of shape (..., inputs, outputs)."""
        name = self._name(weight)
        if name is None:
            return
        shape, stride = tuple(weight.shape[-2:]), weight.stride()[-2:]
        straight = stride == self.shadow.tensors[name].stride()
        if self.shapes[name] != (shape if straight else shape[::-1]):
            return
        rows = x.numel() // x.shape[-1]
        call = Call(rows, (), (), (), (), (), (), False, 1, 0, x.dtype)
        inputs, outputs = Side(int(not straight), 1, rows), Side(int(straight), 1, rows)
        self.uses.append(Use(name, call, inputs, outputs))

    def _name(self, weight: Tensor) -> str | None:
        """The parameter that ``weight`` is, or was made from by the module that runs."""
        known = self.names.get(storage_of(weight))
        if known is not None:
            return known
        module = self.shadow.model.get_submodule(self.shadow.running)
        own = module._parameters.get("weight")
        return self.names.get(storage_of(own)) if own is not None else None
