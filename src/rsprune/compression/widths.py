"""From sparsity to widths (paper, Algorithms 2 and 3), in exact integers.

Algorithm 3, for a chain of layers: K^l <- ceil(K^l max(1 - s^{l+1}, epsilon)). The sparsity of the
next layer says how much of this layer's output is used. On any network, the next layer is all the
layers that read a group of channels; in Algorithm 2 a building block's sparsity shrinks the widths
that are the block's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import ceil, isfinite
from numbers import Integral, Real
from typing import Any, NamedTuple

from torch import nn

from rsprune.checks import check_choice, check_count
from rsprune.compression.budget import Correction, fit, guess
from rsprune.compression.clock import MachineClock
from rsprune.compression.cost import Costs
from rsprune.compression.plan import GroupPlan, PlanTime, WidthPlan
from rsprune.compression.roles import find_roles
from rsprune.compression.search import Room, scaled
from rsprune.compression.sparsity import Sparsity, layer_sparsity, total
from rsprune.compression.steps import Choice, choose_step
from rsprune.compression.target import Target
from rsprune.compression.timing import Clock, LayerTiming, Stopwatch, check_possible
from rsprune.errors import InvalidParameterError
from rsprune.runtimes.ready import RUNTIMES
from rsprune.shadow import check_model
from rsprune.structure.blocks import ForkJoin
from rsprune.structure.groups import ChannelGraph
from rsprune.structure.prune import check_graph

UNITS = ("auto", "layer", "block")
SPREADS = ("auto", "even", "cost")
SPREAD_NEEDS = "target_macs or target_latency without target_params"


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
    round_to: int | str
    spread: str
    target_macs: float | None
    target_params: float | None
    target_latency: float | None
    runtime: str
    batch: int
    threads: int | None

    def __post_init__(self) -> None:
        _check_fraction(self.owner, "epsilon", self.epsilon, zero=True)
        check_choice(self.owner, "unit", self.unit, UNITS)
        check_round_to(self.owner, self.round_to)
        check_choice(self.owner, "spread", self.spread, SPREADS)
        for name in ("target_macs", "target_params", "target_latency"):
            if getattr(self, name) is not None:
                _check_fraction(self.owner, name, getattr(self, name), zero=False)
        targets = self.target_macs, self.target_params, self.target_latency
        if self.spread == "cost" and not spread_by_cost(*targets):
            raise InvalidParameterError(
                self.owner, "spread", f"'auto' or 'even' but for {SPREAD_NEEDS}", self.spread,
                "It keeps weights for the sake of multiply-accumulates.",
            )  # fmt: skip
        check_choice(self.owner, "runtime", self.runtime, RUNTIMES)
        check_count(self.owner, "batch", self.batch, low=1)
        if self.threads is not None:
            check_count(self.owner, "threads", self.threads, low=1)

    @property
    def step(self) -> int:
        """What widths are multiples of until something better is found."""
        return 1 if isinstance(self.round_to, str) else int(self.round_to)

    @property
    def target(self) -> Target:
        """The targets together."""
        return Target(self.owner, self.target_macs, self.target_params, self.target_latency)

    @property
    def floor(self) -> Fraction:
        """Epsilon as the decimal fraction that was written."""
        return Fraction(str(self.epsilon))


def chosen_spread(options: Options, unit: str, graph: ChannelGraph) -> str:
    """``"even"`` or ``"cost"``, which was the better one in ResNet-20's blocks."""
    if options.spread != "auto":
        return options.spread
    blocks = unit == "block" and any(block.operator == "add" for block in graph.blocks)
    alone = options.target_params is None and options.target_latency is None
    return "cost" if blocks and alone and options.target_macs is not None else "even"


def spread_by_cost(macs: float | None, params: float | None, latency: float | None) -> bool:
    """Whether there are targets for which weights differ in what they cost."""
    return params is None and not (macs is None and latency is None)


def check_round_to(owner: str, value: object) -> None:
    """Accept a whole number from 1 on, and "auto"."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if value != "auto" and not (whole and value >= 1):  # type: ignore[operator]
        raise InvalidParameterError(
            owner, "round_to", "a whole number in the range [1, inf), or 'auto'", value,
            "1 does not round; 'auto' measures multiples of 1, 4, 8, 16 and 32.",
        )  # fmt: skip


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
    round_to: int | str = 1,
    spread: str = "auto",
    target_macs: float | None = None,
    target_params: float | None = None,
    target_latency: float | None = None,
    runtime: str = "torch",
    batch: int = 1,
    threads: int | None = None,
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
        round_to: widths are rounded to the nearest multiple of this. ``"auto"``: models with
            multiples of 1, 4, 8, 16 and 32 and the same number of multiply-accumulates are
            measured, and the fastest is taken.
        spread: how the cut that a target asks for is spread over the groups. ``"even"``: all widths
            of the rule are scaled by one factor. ``"cost"``: groups whose weights are multiplied
            often, those with large maps, are cut more; for ``target_macs`` and ``target_latency``.
            ``"auto"``: by cost where the unit is the block, paths join by addition, and
            ``target_macs`` is the only target. Choose ``"even"`` for a model that is cut several
            times: by cost, every cut begins with the same groups.
        target_macs, target_params: fractions, in (0, 1], of the model's multiply-accumulates and
            parameters. The rule's widths are scaled so that the planned model stays below, within
            2 % where units allow. Of several targets the tightest one decides.
        target_latency: a fraction, in (0, 1], of the time that the model takes, measured. The
            planned model stays below, within 5 %.
        runtime: what times are measured in: ``"torch"``, ``"compile"`` (torch.compile) or
            ``"onnxruntime"``.
        batch: the size of the batch that is timed: the example inputs, repeated.
        threads: how many the runtime uses; None is torch's present number.

    Raises:
        InvalidParameterError: if a target cannot be met; the message names the closest that can.
        ExportError: if the runtime is not installed, or does not take the model.
    """
    options = Options(
        "plan_widths", epsilon, unit, round_to, spread, target_macs, target_params, target_latency,
        runtime, batch, threads,
    )  # fmt: skip
    check_model("plan_widths", model)
    check_graph("plan_widths", model, graph)
    return plan(model, graph, options)


def plan(
    model: nn.Module, graph: ChannelGraph, options: Options, clock: Clock | None = None
) -> WidthPlan:
    """As :func:`plan_widths`, with checked options; ``clock`` measures, else this machine does."""
    unit, drivers = find_drivers(model, graph, options.unit)
    clock = clock or machine(model, graph, options)
    stopwatch, costs = Stopwatch(model, graph, clock), Costs(model, graph)
    spread = chosen_spread(options, unit, graph)
    worth = costs.worth() if spread == "cost" else [Fraction(1)] * len(costs.sizes)
    rooms = partial(_rooms, graph, drivers, options.floor, worth)
    remedy = _remedy(unit, options, rooms(options.step))
    timing = None
    if options.target.latency is not None and options.target.used(costs.full, costs.full) > 1:
        least = scaled(rooms(options.step), Fraction(0))
        check_possible(costs, stopwatch, least, options.target, remedy)
        timing = costs.timing = LayerTiming(costs, stopwatch, clock, least)
    step, found, shares = _decide(costs, stopwatch, rooms, options, remedy)
    time = None
    if stopwatch.seconds:
        after = stopwatch.shares([found.widths])[0] * stopwatch.seconds
        layers = timing.layers(costs.shapes(found.widths), after) if timing else ()
        time = PlanTime(
            options.runtime, options.batch, options.threads, stopwatch.seconds, after, layers,
            tuple(shares.items()),
        )  # fmt: skip
    groups = tuple(
        GroupPlan(group.name, group.size, int(width), *drivers[group.name])
        for group, width in zip(graph.prunable, found.widths, strict=True)
    )
    return WidthPlan(
        groups, unit, float(found.factor), int(found.cost.macs), int(found.cost.params),
        int(costs.full.macs), int(costs.full.params), step, time, spread,
    )  # fmt: skip


def check_measuring(
    model: nn.Module, graph: ChannelGraph, options: Options, clock: Clock | None = None
) -> None:
    """Refuse a model that the runtime does not take, and a target that the least widths miss."""
    unit, drivers = find_drivers(model, graph, options.unit)
    alike = [Fraction(1)] * len(graph.prunable)  # the least widths are the same for all spreads
    rooms = _rooms(graph, drivers, options.floor, alike, options.step)
    stopwatch = Stopwatch(model, graph, clock or machine(model, graph, options))
    target = Target(options.owner, None, None, options.target_latency)
    remedy = _remedy(unit, options, rooms)
    check_possible(Costs(model, graph), stopwatch, scaled(rooms, Fraction(0)), target, remedy)


def machine(model: nn.Module, graph: ChannelGraph, options: Options) -> MachineClock:
    """What measures times, as the options say."""
    return MachineClock(model, graph, options.runtime, options.batch, options.threads)


def _decide(
    costs: Costs,
    stopwatch: Stopwatch,
    rooms: Callable[[int], list[Room]],
    options: Options,
    remedy: str,
) -> Choice:
    """The multiple, the widths, and the times of all multiples that were tried."""
    target = options.target
    if options.round_to != "auto":
        return Choice(options.step, fit(costs, rooms(options.step), target, remedy), {})
    if costs.timing is None:
        start = fit(costs, rooms(1), target, remedy)
        return choose_step(costs, stopwatch, rooms, start, target)
    start = guess(costs, rooms(1), target)
    choice = choose_step(costs, stopwatch, rooms, start, target)
    widths = choice.fit.widths
    learnt = Correction.learnt(costs.estimate(widths), costs.exact(widths))
    try:
        return choice._replace(fit=fit(costs, rooms(choice.step), target, remedy, learnt))
    except InvalidParameterError:  # its smallest widths are too large; those of 1 go further
        if choice.step == 1:
            raise
        return choice._replace(step=1, fit=fit(costs, rooms(1), target, remedy))


def width_of(size: int, counted: Sparsity, epsilon: Fraction) -> int:
    """Algorithm 3, line 3: ceil(K max(1 - s, epsilon)), at least 1."""
    used = Fraction(counted.elements - counted.zeros, counted.elements)
    return max(1, ceil(size * max(used, epsilon)))


def _rooms(
    graph: ChannelGraph,
    drivers: Mapping[str, Driver],
    epsilon: Fraction,
    worth: Sequence[Fraction],
    step: int,
) -> list[Room]:
    """The widths that groups may have, and those that the rule gives them."""
    rooms = []
    for group, share in zip(graph.prunable, worth, strict=True):
        size, counted = group.size, drivers[group.name].counted
        if counted is None or not counted.elements or size < step:
            rooms.append(Room(size, size, size, step))
        else:
            floor = max(1, ceil(size * epsilon))
            rooms.append(Room(size, floor, width_of(size, counted, epsilon), step, share))
    return rooms


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
            else Driver(None, "no weight of a layer reads it")
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
    if options.step > 1:
        ways.append("a smaller round_to")
    if unit == "block":
        ways.append('unit="layer", which also shrinks what blocks share')
    return f"Try {' or '.join(ways)}." if ways else "No group can shrink further."
