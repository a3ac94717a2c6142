"""Counts multiply-accumulates and weights, layer by layer, without computing anything.

The model's code runs once on tensors without data. Every convolution and matrix product is counted
with torch's own formulas, so the total is half of what ``torch.utils.flop_counter`` counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from rsprune.columns import aligned
from rsprune.errors import TraceError
from rsprune.layers import weight_names
from rsprune.shadow import Arguments, Observer, Shadow, bind, check_model, explain, storage_of


@dataclass(frozen=True)
class Layer:
    """A module that multiplies.

    Attributes:
        name: its name in the model; "" is the model itself.
        kind: its class.
        output_shape: the shape of its output, at its first call.
        weights: the weights of convolution and linear layers it multiplies with, unless an earlier
            layer has the same ones.
        macs: the multiply-accumulates it runs itself, over all its calls.
        share: the part of the model's multiply-accumulates.
    """

    name: str
    kind: str
    output_shape: tuple[int, ...]
    weights: int
    macs: int
    share: float


@dataclass(frozen=True)
class Profile:
    """What a model costs; ``print`` shows it as a table.

    Attributes:
        macs: the multiply-accumulates of all convolutions and matrix products.
        weights: the weights of convolution and linear layers; biases, norms and embeddings are not
            among them, and tied weights count once.
        params: all parameters, each once.
        layers: the modules that multiply, in the order of their first call.
    """

    macs: int
    weights: int
    params: int
    layers: tuple[Layer, ...]

    @property
    def idle_weights(self) -> int:
        """The weights that no multiplication used, such as those of heads for training only."""
        return self.weights - sum(layer.weights for layer in self.layers)

    def __str__(self) -> str:
        heads = ("module", "kind", "output", "weights", "MACs", "share")
        rows = [
            (
                layer.name or "(model)",
                layer.kind,
                "x".join(map(str, layer.output_shape)),
                f"{layer.weights:,}",
                f"{layer.macs:,}",
                f"{layer.share:.1%}",
            )
            for layer in self.layers
        ]
        if self.idle_weights:
            rows.append(("(not run)", "", "", f"{self.idle_weights:,}", "0", "0.0%"))
        rows.append(("total", "", "", f"{self.weights:,}", f"{self.macs:,}", ""))
        return f"{aligned([heads, *rows], right=(3, 4, 5))}\n{self.params:,} parameters"


def profile(model: nn.Module, example_inputs: Any) -> Profile:
    """Count the multiply-accumulates, weights and parameters of ``model``, in evaluation mode.

    Nothing is computed and the model stays as it was; it may be on any device, meta included.
    Multiply-accumulates are those of the whole batch: pass a batch of one to count for one input.

    Args:
        model: any module of plain Python.
        example_inputs: a tensor; a tuple of positional arguments; a dict of keyword arguments.

    Raises:
        TraceError: if the model raises; the message says where.
    """
    check_model("profile", model)
    arguments = bind("profile", model, example_inputs)
    with suppress(TraceError):
        return _count(model, arguments, real=False)
    # The model's code may look at values, which tensors without data lack.
    return _count(model, arguments, real=True)


def _count(model: nn.Module, arguments: Arguments, *, real: bool) -> Profile:
    # In inference mode, or as a fused kernel, products would come in forms without a formula.
    with torch.inference_mode(False), sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        try:
            counter = _Counter(Shadow(model, arguments, real=real))
            counter.shadow.run(counter, training=False)
        except Exception as error:
            raise TraceError(explain(error, model, arguments)) from error
        return counter.result()


class _Counter(Observer):
    """Counts the products that a shadow runs, by the innermost module that runs."""

    def __init__(self, shadow: Shadow) -> None:
        super().__init__()
        self.shadow = shadow
        self.macs: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.readers: dict[int, str] = {}  # the first module to multiply with a storage
        for name, module in shadow.model.named_modules():
            self._note_shape(name, module)

    def _note_shape(self, name: str, module: nn.Module) -> None:
        def hook(_module: nn.Module, _args: Any, out: Any) -> None:
            self.shapes.setdefault(name, next(_shapes(out), ()))

        module.register_forward_hook(hook, prepend=True)  # before hooks that may change it

    def observe(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        formula = flop_registry.get(func.overloadpacket)
        if formula is None:
            return
        name = self.shadow.stack[-1]
        flops = formula(*args, **kwargs, out_val=out)
        self.macs[name] = self.macs.get(name, 0) + flops // 2
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self.readers.setdefault(storage_of(tensor), name)

    def result(self) -> Profile:
        model = self.shadow.model
        weights = dict.fromkeys(self.macs, 0)
        total = 0
        for name, weight in _layer_weights(model):
            total += weight.numel()
            # Some layers only hold a weight which another module uses, e.g. attention's out_proj.
            user = name if name in weights else self.readers.get(storage_of(weight))
            if user is not None:
                weights[user] += weight.numel()
        macs = sum(self.macs.values())
        layers = (
            Layer(
                name=name,
                kind=type(model.get_submodule(name)).__name__,
                output_shape=self.shapes.get(name, ()),
                weights=weights[name],
                macs=count,
                share=count / macs if macs else 0.0,
            )
            for name, count in self.macs.items()
        )
        return Profile(macs, total, sum(p.numel() for p in model.parameters()), tuple(layers))


def _layer_weights(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The weights of convolution and linear layers, each once, with the name of their layer."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, module in model.named_modules():
        for weight in (getattr(module, attribute) for attribute in weight_names(module)):
            if weight is not None:
                found.setdefault(id(weight), (name, weight))
    return list(found.values())


def _shapes(values: Any) -> Iterator[tuple[int, ...]]:
    return (tuple(x.shape) for x in tree_leaves(values) if isinstance(x, Tensor))
