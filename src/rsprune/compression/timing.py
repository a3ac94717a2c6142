"""How long a model takes once its groups have certain widths, relative to the given model.

Measured: both take turns, whole. Estimated: by the table of layers, and by a rest (norms,
activations, additions, overhead), which is what the whole model takes longer than its layers. The
rest is taken to change with the numbers that layers read and make, between the smallest widths and
the full ones, which are both measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import nn

from rsprune.compression.calls import find_uses
from rsprune.compression.cost import Costs
from rsprune.compression.plan import LayerTime
from rsprune.compression.table import LayerClock, Numbers, Table
from rsprune.compression.target import Target
from rsprune.errors import RsPruneWarning
from rsprune.shadow import Arguments
from rsprune.structure.groups import ChannelGraph
from rsprune.structure.layout import Labels
from rsprune.structure.prune import prune


class Clock(LayerClock, Protocol):
    """Times layers, and whole models against the given one."""

    @property
    def arguments(self) -> Arguments:
        """The batch that counts."""

    def models(self, models: Sequence[nn.Module]) -> list[float]:
        """The seconds of the given model and of these, side by side."""


class Stopwatch:
    """The relative times of a model's cuts; each is measured once.

    Attributes:
        seconds: of the given model, when it was last measured.
    """

    def __init__(self, model: nn.Module, graph: ChannelGraph, clock: Clock) -> None:
        self._model, self._graph, self._clock = model, graph, clock
        sizes = np.array([group.size for group in graph.prunable], dtype=np.int64)
        self._known = {sizes.tobytes(): 1.0}
        self.seconds = 0.0

    def shares(self, every: Sequence[Labels]) -> list[float]:
        """The times of models with these widths, which take turns."""
        new = {widths.tobytes(): widths for widths in every if widths.tobytes() not in self._known}
        if new:
            self.seconds, *others = self._clock.models([self._cut(own) for own in new.values()])
            found = [seconds / self.seconds for seconds in others]
            self._known.update(zip(new, found, strict=True))
        return [self._known[widths.tobytes()] for widths in every]

    def _cut(self, widths: Labels) -> nn.Module:
        drop = {
            group.name: range(int(width), group.size)
            for group, width in zip(self._graph.prunable, widths, strict=True)
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RsPruneWarning)  # the real cut repeats them
            return prune(self._model, self._graph, drop)


def check_possible(
    costs: Costs, stopwatch: Stopwatch, least: Labels, target: Target, remedy: str
) -> None:
    """Refuse a target that the smallest widths do not meet; they are measured."""
    lowest = costs.counted(least)._replace(time=stopwatch.shares([least])[0])
    if target.used(lowest, costs.full) > 1:
        raise target.refusal(lowest, costs.full, remedy)


class LayerTiming:
    """Estimates and measures times; see :class:`rsprune.compression.cost.Timing`.

    Args:
        costs: of the model, by widths.
        stopwatch: measures whole models.
        clock: measures layers.
        least: the smallest widths.
    """

    def __init__(self, costs: Costs, stopwatch: Stopwatch, clock: Clock, least: Labels) -> None:
        self._stopwatch = stopwatch
        uses = find_uses(costs.model, clock.arguments, real=costs.graph.real)
        rows = {name: row for row, (name, _) in enumerate(costs.model.named_parameters())}
        self._names = [use.parameter.removesuffix(".weight") for use in uses]
        self._full, small = costs.shapes(costs.sizes), costs.shapes(least)
        self._table = Table(uses, [rows[use.parameter] for use in uses], self._full, small, clock)
        share = self.measure(least)
        self._seconds = stopwatch.seconds  # of the whole model
        activations = [self._table.activations(shapes) for shapes in (small, self._full)]
        layers = [float(self._table.seconds(shapes).sum()) for shapes in (small, self._full)]
        rest = [share * self._seconds - layers[0], self._seconds - layers[1]]
        span = activations[1] - activations[0]
        self._slope = (rest[1] - rest[0]) / span if span else 0.0
        self._fixed = rest[1] - self._slope * activations[1]

    def estimate(self, shapes: Labels) -> float:
        """The relative time of a model whose parameters have these shapes."""
        layers = float(self._table.seconds(shapes).sum())
        rest = self._fixed + self._slope * self._table.activations(shapes)
        return max((layers + rest) / self._seconds, 1e-3)

    def measure(self, widths: Labels) -> float:
        """The relative time of a model with these widths."""
        return self._stopwatch.shares([widths])[0]

    def layers(self, shapes: Labels, whole: float) -> tuple[LayerTime, ...]:
        """The seconds of every layer before and after; ``whole`` are the model's after.

        Where layers that run alone take longer than the whole model does, they are scaled down.
        """
        before = _within(self._table.seconds(self._full), self._stopwatch.seconds)
        after = _within(self._table.seconds(shapes), whole)
        found: dict[str, LayerTime] = {}
        for name, *own in zip(self._names, before.tolist(), after.tolist(), strict=True):
            earlier = found.get(name, LayerTime(name, 0.0, 0.0))  # a layer may run twice
            found[name] = LayerTime(name, earlier.before + own[0], earlier.after + own[1])
        return tuple(found.values())


def _within(seconds: Numbers, whole: float) -> Numbers:
    return seconds * min(1.0, whole / max(float(seconds.sum()), 1e-12))
