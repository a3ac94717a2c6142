"""``round_to="auto"``: which multiples widths should be of on this machine, by measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rsprune.compression.budget import Fit, nearest
from rsprune.compression.cost import Costs
from rsprune.compression.search import Room
from rsprune.compression.target import WITHIN, Target
from rsprune.compression.timing import Stopwatch

STEPS = (1, 4, 8, 16, 32)
_ALIKE = 0.03  # times that differ by less count as equal


class Choice(NamedTuple):
    """A multiple, the widths that go with it, and the relative times of all that were tried."""

    step: int
    fit: Fit
    shares: dict[int, float]


def choose_step(
    costs: Costs,
    stopwatch: Stopwatch,
    rooms: Callable[[int], Sequence[Room]],
    start: Fit,
    target: Target,
) -> Choice:
    """The fastest multiple; all are tried with as many multiply-accumulates as ``start``.

    Args:
        costs: of the model.
        stopwatch: measures.
        rooms: the widths that groups may have, by multiple.
        start: widths that are multiples of 1.
        target: what they are to meet.
    """
    macs = start.cost.macs / costs.full.macs
    tried = {1: start}
    for step in STEPS[1:] if macs < 1 else ():
        found = nearest(costs, rooms(step), Target(target.owner, macs, target.params))
        if found is not None and found.cost.macs >= (1 - WITHIN["macs"]) * start.cost.macs:
            tried[step] = found
    if len(tried) == 1:
        return Choice(1, start, {})
    times = stopwatch.shares([fit.widths for fit in tried.values()])
    shares = dict(zip(tried, times, strict=True))
    step = fastest(shares)
    return Choice(step, tried[step], shares)


def fastest(times: Mapping[int, float]) -> int:
    """The multiple with the shortest time; of those that are nearly as short, the smallest."""
    limit = (1 + _ALIKE) * min(times.values())
    return min(step for step, time in times.items() if time <= limit)
