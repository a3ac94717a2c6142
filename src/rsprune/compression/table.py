"""How long every layer takes, by its widths: measured at some, interpolated between them."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rsprune.compression.calls import Call, Use
from rsprune.structure.layout import Labels

_POINTS = 4  # of each side of a layer, from its smallest to its full number of channels
_LIKED = 8  # widths between them are multiples of this where they are larger

Numbers = npt.NDArray[np.float64]


class LayerClock(Protocol):
    """Times layers."""

    def layer(self, call: Call, inputs: int, outputs: int) -> float:
        """The seconds of a call with these numbers of channels."""


class Table:
    """The seconds of all layers of a model by their numbers of channels.

    Args:
        uses: the layers.
        rows: the rows of their parameters in the arrays of shapes.
        full: the shapes of all parameters.
        least: the shapes at the smallest widths there are.
        clock: times the layers; equal ones once.
    """

    def __init__(
        self, uses: Sequence[Use], rows: Sequence[int], full: Labels, least: Labels,
        clock: LayerClock,
    ) -> None:  # fmt: skip
        self._rows = np.array(rows, dtype=np.int64)
        sides = [(use.inputs, use.outputs) for use in uses]
        self._dims, self._times, self._elements = (
            np.array(column, dtype=kind).reshape(len(uses), 2).T
            for column, kind in (
                ([[side.dim for side in pair] for pair in sides], np.int64),
                ([[side.times for side in pair] for pair in sides], np.float64),
                ([[side.elements for side in pair] for pair in sides], np.float64),
            )
        )  # each (2, uses)
        low, high = self._channels(least), self._channels(full)
        axes = np.array(
            [
                [_axis(low[s, n], high[s, n], use.call.groups or 1) for n, use in enumerate(uses)]
                for s in range(2)
            ]
        ).reshape(2, len(uses), _POINTS)
        known: dict[tuple[Call, int, int], float] = {}

        def seconds(call: Call, inputs: int, outputs: int) -> float:
            outputs = outputs if call.groups else inputs * call.fan_out
            key = (call, inputs, outputs)
            if key not in known:
                known[key] = clock.layer(*key)
            return known[key]

        grid = np.array(
            [
                [[seconds(use.call, int(i), int(o)) for o in axes[1, n]] for i in axes[0, n]]
                for n, use in enumerate(uses)
            ]
        ).reshape(len(uses), _POINTS, _POINTS)
        for axis in (1, 2):  # noise only adds: what is narrower is not slower
            grid = np.flip(np.minimum.accumulate(np.flip(grid, axis), axis), axis)
        self._axes, self._grid = np.log(axes), np.log(grid)

    def _channels(self, shapes: Labels) -> Numbers:
        """The numbers of channels that the layers read and make: (2, uses)."""
        found: Numbers = shapes[self._rows, self._dims] * self._times
        return found

    def seconds(self, shapes: Labels) -> Numbers:
        """The seconds of every layer, bilinear in logarithms: (uses,)."""
        every = np.arange(len(self._rows))
        (i, x), (o, y) = map(_place, self._axes, np.log(self._channels(shapes)))
        grid = self._grid
        narrow = (1 - y) * grid[every, i, o] + y * grid[every, i, o + 1]
        wide = (1 - y) * grid[every, i + 1, o] + y * grid[every, i + 1, o + 1]
        found: Numbers = np.exp((1 - x) * narrow + x * wide)
        return found

    def activations(self, shapes: Labels) -> float:
        """The numbers that the layers read and make."""
        return float((self._channels(shapes) * self._elements).sum())


def _axis(low: float, high: float, groups: int) -> list[int]:
    """Numbers of channels from ``low`` to ``high``, in equal ratios; groups stay equal."""
    points = []
    for x in np.geomspace(low, high, _POINTS):
        step = lcm(_LIKED, groups) if x > _LIKED and low < x < high else groups
        points.append(step * round(x / step))
    return [round(min(high, max(low, point))) for point in points]


def _place(axis: Numbers, x: Numbers) -> tuple[Labels, Numbers]:
    """Between which points of its axis every entry lies, and where between them."""
    every = np.arange(len(x))
    cell = (x[:, None] >= axis[:, 1:-1]).sum(axis=1)
    low, high = axis[every, cell], axis[every, cell + 1]
    width = np.where(high > low, high - low, 1.0)
    return cell, np.clip((x - low) / width, 0.0, 1.0)
