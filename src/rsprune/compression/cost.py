"""What a model costs once its groups have certain widths.

``Costs.exact`` cuts a double without data and counts. ``Costs.estimate`` is a closed form for the
search, quick enough to be asked thousands of times: parameters come out exact; a layer's
multiply-accumulates are taken to shrink as its weights do, which is exact for convolutions and for
linear layers, and near for attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rsprune.errors import TraceError
from rsprune.metrics.macs import Profile, profile
from rsprune.shadow import Arguments, named_tensors, replica
from rsprune.structure.cut import attribute_values, cut_model, set_widths, survivors
from rsprune.structure.groups import ChannelGraph
from rsprune.structure.layout import Labels
from rsprune.structure.prune import alive_labels


class Cost(NamedTuple):
    """Multiply-accumulates and parameters."""

    macs: float
    params: float


def as_inputs(arguments: Arguments) -> Any:
    """Bound arguments in a form that ``rsprune.profile`` takes."""
    args, kwargs = arguments
    if not args:
        return kwargs
    return (*args, kwargs) if kwargs else args


class Costs:
    """The costs of one model by the widths of its prunable groups, in the graph's order."""

    def __init__(self, model: nn.Module, graph: ChannelGraph) -> None:
        self.model, self.graph = model, graph
        self.sizes = np.array([group.size for group in graph.prunable], dtype=np.int64)
        self.profile: Profile = profile(model, as_inputs(graph.arguments))
        self.full = Cost(self.profile.macs, self.profile.params)
        self._known = {self.sizes.tobytes(): self.full}
        self._prepare()

    def _prepare(self) -> None:
        """Where the groups lie: a dropped unit takes ``count`` from a dimension of a parameter."""
        parameters = {name: tuple(p.shape) for name, p in self.model.named_parameters()}
        row = {name: i for i, name in enumerate(parameters)}
        rank = max([1, *map(len, parameters.values())])
        self._shapes = np.ones((len(row), rank), dtype=np.int64)
        for name, shape in parameters.items():
            self._shapes[row[name], : len(shape)] = shape
        lies = [
            (row[tensor] * rank + dim, g, positions.shape[1])
            for g, group in enumerate(self.graph.prunable)
            for tensor, dim, positions in group.places
            if tensor in row
        ]
        self._at, self._group, self._count = np.array(lies, dtype=np.int64).reshape(-1, 3).T
        self._per_weight, self._constant = self._macs_per_weight(row)

    def _macs_per_weight(self, row: Mapping[str, int]) -> tuple[np.ndarray[Any, Any], int]:
        """How often each parameter's elements are multiplied, and what has no parameter."""
        often, constant = np.zeros(len(row)), 0
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for layer in self.profile.layers:
            module = self.model.get_submodule(layer.name)
            own = list(module.parameters(recurse=isinstance(module, nn.MultiheadAttention)))
            weights = [p for p in own if p.dim() > 1]
            elements = sum(p.numel() for p in weights)
            if not elements:
                constant += layer.macs
            for parameter in weights:
                often[row[names[parameter]]] += layer.macs / elements
        return often, constant

    def estimate(self, widths: Labels) -> Cost:
        """The cost of these widths, by the closed form."""
        gone = self._count * (self.sizes - widths)[self._group]
        lost = np.bincount(self._at, weights=gone, minlength=self._shapes.size)
        elements = (self._shapes - lost.astype(np.int64).reshape(self._shapes.shape)).prod(axis=1)
        return Cost(float(elements @ self._per_weight) + self._constant, int(elements.sum()))

    def exact(self, widths: Labels) -> Cost:
        """The cost of these widths, counted on a cut double."""
        key = widths.tobytes()
        if key not in self._known:
            self._known[key] = self._counted(widths)
        return self._known[key]

    def _counted(self, widths: Labels) -> Cost:
        gone = {
            group.name: list(range(int(width), group.size))
            for group, width in zip(self.graph.prunable, widths, strict=True)
        }
        alive = alive_labels(self.graph, gone)
        kept = survivors(self.graph.labels, alive)
        values = attribute_values(self.graph.attributes, self.graph.records, alive)
        if self.graph.real:  # code that looks at values needs some
            double = cut_model(self.model, kept, values)
        else:
            tensors = named_tensors(self.model)
            double = replica(
                self.model, {name: _shell(t, kept.get(name, {})) for name, t in tensors.items()}
            )
            set_widths(double, values)
        try:
            found = profile(double, as_inputs(self.graph.arguments))
        except TraceError:  # code that does not run at these widths: prune will leave it whole
            return self.estimate(widths)
        return Cost(found.macs, found.params)


def _shell(tensor: Tensor, kept: Mapping[int, Tensor]) -> Tensor:
    """The shape of a cut tensor without its data."""
    shape = [len(kept[d]) if d in kept else size for d, size in enumerate(tensor.shape)]
    if not kept and not tensor.is_floating_point():
        return tensor
    shell = torch.empty(shape, dtype=tensor.dtype, device="meta")
    return nn.Parameter(shell, False) if isinstance(tensor, nn.Parameter) else shell
