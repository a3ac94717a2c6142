"""From sparsity to widths (paper, Algorithms 2 and 3), in exact integers.

Algorithm 3, for a chain of layers: K^l <- ceil(K^l max(1 - s^{l+1}, epsilon)). The sparsity of the
next layer says how much of this layer's output is used. On any network, the next layer is all the
layers that read a group of channels; in Algorithm 2 a building block's sparsity shrinks the widths
that are the block's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isfinite
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from rsprune.checks import check_choice, check_count
from rsprune.compression.budget import Room, Target, fit
from rsprune.compression.cost import Costs
from rsprune.compression.plan import GroupPlan, WidthPlan
from rsprune.compression.roles import find_roles
from rsprune.compression.sparsity import Sparsity, layer_sparsity, total
from rsprune.errors import InvalidParameterError
from rsprune.shadow import check_model
from rsprune.structure.blocks import ForkJoin
from rsprune.structure.groups import ChannelGraph
from rsprune.structure.prune import check_graph

UNITS = ("auto", "layer", "block")


class Driver(NamedTuple):
    """What drives the width of a group; without a count the group stays whole."""

    counted: Sparsity | None
    text: str


@dataclass(frozen=True)
class Options:
    """What the caller asked of the widths, checked."""

    owner: str
    epsilon: float
    unit: str
    round_to: int
    target_macs: float | None
    target_params: float | None

    def __post_init__(self) -> None:
        _check_fraction(self.owner, "epsilon", self.epsilon, zero=True)
        check_choice(self.owner, "unit", self.unit, UNITS)
        check_count(self.owner, "round_to", self.round_to, low=1, remedy="1 does not round.")
        for name in ("target_macs", "target_params"):
            if getattr(self, name) is not None:
                _check_fraction(self.owner, name, getattr(self, name), zero=False)

    @property
    def floor(self) -> Fraction:
        """Epsilon as the decimal fraction that was written."""
        return Fraction(str(self.epsilon))


def _check_fraction(owner: str, name: str, value: Any, *, zero: bool) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    if not number or not 0 <= value <= 1 or (value == 0 and not zero):
        remedy = (
            "It is the least part of a group's units that stays."
            if zero
            else "It is a fraction of the given model's: 0.5 is half."
        )
        allowed = f"a number in the range {'[' if zero else '('}0, 1]"
        raise InvalidParameterError(owner, name, allowed, value, remedy)


def plan_widths(
    model: nn.Module,
    graph: ChannelGraph,
    *,
    epsilon: float = 0.1,
    unit: str = "auto",
    round_to: int = 1,
    target_macs: float | None = None,
    target_params: float | None = None,
) -> WidthPlan:
    """Decide how wide every group of channels shall be, by the zeros in the model's weights.

    Args:
        model: a model that was trained sparse.
        graph: what :func:`rsprune.trace` found out about it.
        epsilon: the least part of a group's units that stays, in [0, 1]; one unit always does.
        unit: ``"layer"``: a group shrinks by the sparsity of all layers that read it, Algorithm 3.
            ``"block"``: the widths inside a fork-join block shrink by the sparsity of all its
            layers, and what the block shares with its neighbours stays, Algorithm 2; groups in no
            block follow the layer rule. ``"auto"``: block where the model has joins by addition.
        round_to: widths are rounded to the nearest multiple of this.
        target_macs, target_params: fractions, in (0, 1], of the model's multiply-accumulates and
            parameters. The rule's widths are scaled by one factor so that the planned model stays
            below, within 2 % where units allow. Of two targets the tighter one decides.
    """
    options = Options("plan_widths", epsilon, unit, round_to, target_macs, target_params)
    check_model("plan_widths", model)
    check_graph("plan_widths", model, graph)
    return plan(model, graph, options)


def plan(model: nn.Module, graph: ChannelGraph, options: Options) -> WidthPlan:
    """As :func:`plan_widths`, with checked options."""
    unit, drivers = find_drivers(model, graph, options.unit)
    rooms = [
        _room(group.size, drivers[group.name].counted, options.floor, options.round_to)
        for group in graph.prunable
    ]
    costs = Costs(model, graph)
    factor = Fraction(1)
    widths = np.array([room.scaled(factor) for room in rooms], dtype=np.int64)
    target = Target(options.owner, options.target_macs, options.target_params)
    if target:
        factor, widths = fit(costs, rooms, target, _remedy(unit, options, rooms))
    cost = costs.exact(widths)
    groups = tuple(
        GroupPlan(group.name, group.size, int(width), *drivers[group.name])
        for group, width in zip(graph.prunable, widths, strict=True)
    )
    return WidthPlan(
        groups, unit, float(factor),
        int(cost.macs), int(cost.params), int(costs.full.macs), int(costs.full.params),
    )  # fmt: skip


def width_of(size: int, counted: Sparsity, epsilon: Fraction) -> int:
    """Algorithm 3, line 3: ceil(K max(1 - s, epsilon)), at least 1."""
    used = Fraction(counted.elements - counted.zeros, counted.elements)
    return max(1, ceil(size * max(used, epsilon)))


def _room(size: int, counted: Sparsity | None, epsilon: Fraction, round_to: int) -> Room:
    """The widths that a group may have, and the one that the rule gives it."""
    if counted is None or not counted.elements or size < round_to:
        return Room(size, size, size, round_to)
    floor = max(1, ceil(size * epsilon))
    return Room(size, floor, width_of(size, counted, epsilon), round_to)


def find_drivers(model: nn.Module, graph: ChannelGraph, unit: str) -> tuple[str, dict[str, Driver]]:
    """``"layer"`` or ``"block"``, and what drives the width of every prunable group."""
    sparsity = layer_sparsity(model)
    roles = find_roles(model)
    drivers = {}
    for group in graph.prunable:
        read = dict.fromkeys(tensor for tensor, _, _ in roles.readers(group))
        names = [name for name in read if name in sparsity]
        drivers[group.name] = (
            Driver(total([sparsity[name] for name in names]), _listed(names))
            if names
            else Driver(None, "no layer reads it")
        )
    sums = [block for block in graph.blocks if block.operator == "add"]
    if unit == "auto":
        unit = "block" if sums else "layer"
    if unit == "block":
        drivers |= _block_drivers(sums or graph.blocks, sparsity)
    return unit, drivers


def _block_drivers(
    blocks: Sequence[ForkJoin], sparsity: Mapping[str, Sparsity]
) -> dict[str, Driver]:
    """Algorithm 2: the smallest block around a group drives it; what blocks share stays whole."""
    found: dict[str, Driver] = {}
    for block in sorted(blocks, key=lambda block: -len(block.tensors)):
        counted = total([sparsity[name] for name in sorted(block.tensors) if name in sparsity])
        for name in block.inner:  # a smaller block overwrites a larger one around it
            found[name] = Driver(counted, f"block {block.name}" if block.name else "block")
    for block in blocks:
        for name in block.outer:
            found[name] = Driver(None, "blocks share it")
    return found


def _listed(names: Sequence[str]) -> str:
    layers = [name.removesuffix(".weight") for name in names]
    more = f" and {len(layers) - 3} more" if len(layers) > 3 else ""
    return ", ".join(layers[:3]) + more


def _remedy(unit: str, options: Options, rooms: Sequence[Room]) -> str:
    """What to change where a target is out of reach."""
    ways = []
    if any(1 < room.floor < room.size for room in rooms):
        ways.append("a lower epsilon")
    if options.round_to > 1:
        ways.append("a smaller round_to")
    if unit == "block":
        ways.append('unit="layer", which also shrinks what blocks share')
    return f"Try {', '.join(ways)}." if ways else "No group can shrink further."
