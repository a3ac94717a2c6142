"""Runs a model on real data and shows what its layers read; the model stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils._pytree import tree_map_only

from rsprune.errors import InvalidParameterError
from rsprune.shadow import Arguments, bind, named_tensors, replica, undisturbed

Watcher = Callable[[str, "nn.Linear | _ConvNd", Tensor], None]


def show_inputs(
    model: nn.Module, runs: Iterable[Arguments], weights: Collection[str], watcher: Watcher
) -> None:
    """Run ``model`` in evaluation mode and hand on what the layers with these weights read.

    ``watcher`` is called with the weight's name, the layer and its input. Layers that read in other
    ways than convolution and linear modules do (attention, transposed convolution) are not shown.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    double = replica(model, {n: _own_buffer(t) for n, t in named_tensors(model).items()}).eval()
    for module in double.modules():
        if isinstance(module, nn.Linear | _ConvNd) and not isinstance(module, _ConvTransposeNd):
            name = names.get(module._parameters.get("weight"))  # type: ignore[arg-type]
            if name is not None and name in weights:
                module.register_forward_pre_hook(_hook(name, watcher), with_kwargs=True)
    device = next(iter(names)).device
    with undisturbed(), torch.no_grad():
        for args, kwargs in runs:
            args, kwargs = tree_map_only(Tensor, lambda t: t.to(device), (args, kwargs))
            double(*args, **kwargs)


def _own_buffer(tensor: Tensor) -> Tensor:
    """Parameters are only read; buffers may be written to."""
    return tensor if isinstance(tensor, nn.Parameter) else tensor.clone()


def _hook(name: str, watcher: Watcher) -> Callable[..., None]:
    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        watcher(name, module, (args[0] if args else kwargs["input"]).detach())

    return hook


def as_runs(model: nn.Module, batches: Any, arguments: Arguments) -> Iterable[Arguments]:
    """``batches`` as arguments of ``model``, of which ``arguments`` are an example.

    Of a batch that is a tuple or list, such as (images, labels), the model gets as many entries as
    it takes.
    """
    if not isinstance(batches, Iterable) or isinstance(batches, Tensor | dict | str):
        raise InvalidParameterError(
            "compress", "batches", "an iterable of inputs, such as a data loader",
            type(batches).__name__, "Pass a list: batches=[images].",
        )  # fmt: skip
    count = len(arguments[0])
    empty = True
    for batch in batches:
        empty = False
        own = tuple(batch[:count]) if isinstance(batch, tuple | list) and count else batch
        yield bind("compress", model, own)
    if empty:
        raise InvalidParameterError(
            "compress", "batches", "an iterable with at least one batch", "an empty one",
            "An iterator that was used up stays empty: pass a list or a data loader.",
        )  # fmt: skip
