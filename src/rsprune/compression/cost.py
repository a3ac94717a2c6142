"""What a model costs once its groups have certain widths.

``Costs.counted`` cuts a double without data and counts; ``Costs.exact`` measures the time as well,
where it matters. ``Costs.estimate`` is a closed form for the search, quick enough to be asked
thousands of times: parameters come out exact; a layer's multiply-accumulates are taken to shrink as
its weights do, which is exact for convolutions and for linear layers, and near for attention; time
is read off a table of layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import sqrt
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rsprune.errors import TraceError
from rsprune.metrics.macs import Profile, profile
from rsprune.shadow import as_inputs, named_tensors, replica
from rsprune.structure.cut import attribute_values, cut_model, set_widths, survivors
from rsprune.structure.groups import ChannelGraph
from rsprune.structure.layout import Labels
from rsprune.structure.prune import alive_labels


class Cost(NamedTuple):
    """Multiply-accumulates and parameters; the time for a batch, relative to the given model's."""

    macs: float
    params: float
    time: float = 1.0  # also where nobody asks for it


class Timing(Protocol):
    """What :class:`Costs` asks about time."""

    def estimate(self, shapes: Labels) -> float:
        """The relative time of a model whose parameters have these shapes, by interpolation."""

    def measure(self, widths: Labels) -> float:
        """The relative time of a model with these widths, by measurement."""


class Costs:
    """The costs of one model by the widths of its prunable groups, in the graph's order.

    Attributes:
        sizes: the widths of the given model.
        profile: what it costs, layer by layer.
        full: what it costs.
        timing: how long it takes; None if time does not matter.
    """

    timing: Timing | None = None

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

    def shapes(self, widths: Labels) -> Labels:
        """The shapes of all parameters at these widths: (parameters, rank), filled up with 1."""
        gone = self._count * (self.sizes - widths)[self._group]
        lost = np.bincount(self._at, weights=gone, minlength=self._shapes.size)
        left: Labels = self._shapes - lost.astype(np.int64).reshape(self._shapes.shape)
        return left

    def worth(self) -> list[Fraction]:
        """For every group, the root of its weights per multiply-accumulate, over the model's.

        If a narrow group errs by its weights over the part of its width that stays, the least error
        at a given number of multiply-accumulates has these parts (by a Lagrange multiplier). That
        holds where no layer lies between two groups that are cut, as in blocks of two convolutions;
        elsewhere it is a heuristic.
        """
        elements = self._shapes.prod(axis=1)
        touched = np.zeros((len(self.sizes), len(elements)))
        touched[self._group, self._at // self._shapes.shape[1]] = 1
        weights = touched @ (elements * (self._per_weight > 0))
        macs = touched @ (elements * self._per_weight)
        whole = elements @ (self._per_weight > 0) / max(1.0, elements @ self._per_weight)
        return [
            Fraction(sqrt(own / often / whole)) if often else Fraction(1)
            for own, often in zip(weights, macs, strict=True)
        ]

    def estimate(self, widths: Labels) -> Cost:
        """The cost of these widths, by the closed form."""
        shapes = self.shapes(widths)
        elements = shapes.prod(axis=1)
        macs = float(elements @ self._per_weight) + self._constant
        time = 1.0 if self.timing is None else self.timing.estimate(shapes)
        return Cost(macs, int(elements.sum()), time)

    def counted(self, widths: Labels) -> Cost:
        """The cost of these widths, counted on a cut double; nobody looks at the time."""
        key = widths.tobytes()
        if key not in self._known:
            self._known[key] = self._count_cut(widths)
        return self._known[key]

    def exact(self, widths: Labels) -> Cost:
        """The cost of these widths, counted, and measured if time matters."""
        found = self.counted(widths)
        return found if self.timing is None else found._replace(time=self.timing.measure(widths))

    def _count_cut(self, widths: Labels) -> Cost:
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
            return self.estimate(widths)._replace(time=1.0)
        return Cost(found.macs, found.params)


def _shell(tensor: Tensor, kept: Mapping[int, Tensor]) -> Tensor:
    """The shape of a cut tensor without its data."""
    shape = [len(kept[d]) if d in kept else size for d, size in enumerate(tensor.shape)]
    if not kept and not tensor.is_floating_point():
        return tensor
    shell = torch.empty(shape, dtype=tensor.dtype, device="meta")
    return nn.Parameter(shell, False) if isinstance(tensor, nn.Parameter) else shell
