"""``rsprune.verify``: the pruned model computes what the zeroed full model computes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from rsprune.errors import InvalidParameterError, VerificationError
from rsprune.shadow import bind, check_model, named_tensors, undisturbed
from rsprune.structure.groups import ChannelGraph
from rsprune.structure.prune import Drop, check_graph, checked_drop
from rsprune.structure.tracer import tensors_in


def verify(
    model: nn.Module,
    slim: nn.Module,
    graph: ChannelGraph,
    drop: Drop,
    example_inputs: Any,
    *,
    tolerance: float = 1e-5,
) -> float:
    """Compare ``slim`` with ``model`` after the dropped units were set to zero there.

    Both run in evaluation mode and double precision, as copies. Normalisation whose statistics run
    over channels (``graph.statistics``) gives other values with fewer channels, by nature; for the
    comparison it only scales and shifts, in both models, so that everything else is still checked.

    Returns:
        The largest difference of the outputs, relative to the largest output.

    Raises:
        VerificationError: if it is larger than ``tolerance``.
    """
    check_model("verify", model)
    check_model("verify", slim)
    check_graph("verify", model, graph)
    if not tolerance > 0:
        raise InvalidParameterError("verify", "tolerance", "a positive number", tolerance)
    units = checked_drop("verify", graph, drop)
    full = copy.deepcopy(model).double().eval()
    set_to_zero(full, graph, units)
    small = copy.deepcopy(slim).double().eval()
    expected, actual = (_outputs(m, example_inputs, graph) for m in (full, small))
    difference = _difference(expected, actual)
    if not difference <= tolerance:
        raise VerificationError(
            f"The pruned model differs from the full one with zeros by {difference:.1e} of its "
            f"largest output; {tolerance:.0e} is allowed. Is it the model that "
            f"rsprune.prune(model, graph, drop) made, with the same graph and drop?"
        )
    return difference


def set_to_zero(model: nn.Module, graph: ChannelGraph, units: Mapping[str, list[int]]) -> None:
    """Set the dropped units of ``model`` to zero, in place."""
    tensors = named_tensors(model)
    with torch.no_grad():
        for name, own in units.items():
            for tensor, dim, positions in graph[name].places:
                index = torch.from_numpy(positions[own].ravel()).to(tensors[tensor].device)
                tensors[tensor].index_fill_(dim, index, 0)


def _outputs(model: nn.Module, example_inputs: Any, graph: ChannelGraph) -> list[Tensor]:
    args, kwargs = tree_map_only(
        Tensor,
        lambda t: t.double() if t.is_floating_point() else t,
        bind("verify", model, example_inputs),
    )
    with undisturbed(), torch.no_grad(), _without_statistics(bool(graph.statistics)):
        return list(tensors_in(model(*args, **kwargs)))


def _difference(expected: list[Tensor], actual: list[Tensor]) -> float:
    if [t.shape for t in expected] != [t.shape for t in actual]:
        raise VerificationError(
            f"The outputs have other shapes: {[tuple(t.shape) for t in actual]} instead of "
            f"{[tuple(t.shape) for t in expected]}."
        )
    largest = 0.0
    for a, b in zip(expected, actual, strict=True):
        if a.numel():
            scale = max(float(a.abs().max()), torch.finfo(torch.float64).tiny)
            largest = max(largest, float((a.double() - b.double()).abs().max()) / scale)
    return largest


class _ScaleAndShift(TorchFunctionMode):
    """Lets norms over channels scale and shift, and nothing else."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.layer_norm:
            return _last(*args, **kwargs)
        if func is F.rms_norm:
            return _last(*args[:3], **kwargs)
        if func is F.group_norm:
            return _channels(*args, **kwargs)
        if func is F.local_response_norm:
            return args[0]
        return func(*args, **kwargs)


def _last(
    x: Tensor, _: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 0.0
) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _channels(
    x: Tensor, _: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 0.0
) -> Tensor:
    shape = (1, -1, *[1] * (x.dim() - 2))
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


@contextmanager
def _without_statistics(active: bool) -> Iterator[None]:
    if not active:
        yield
        return
    with _ScaleAndShift():
        yield
