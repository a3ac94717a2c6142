"""Budgets: widths whose exact cost is below a target and near it.

The search goes by estimates. What it finds is counted and, where time matters, measured; then the
estimates are corrected, and the search goes on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from rsprune.compression.cost import Cost, Costs
from rsprune.compression.search import Room, largest, scaled, search
from rsprune.compression.target import WITHIN, Target
from rsprune.errors import RsPruneWarning
from rsprune.structure.layout import Labels

_CORRECTIONS = 12
_MEASUREMENTS = 6  # of whole models, which may have to be converted or compiled first
_AIM = 1 - WITHIN["latency"] / 2
_NUDGE = 1.03
_ALIKE = 1.2  # factors whose widths may be mixed
_PARTS = 2**_MEASUREMENTS  # of the way from the smallest widths
_ADVICE = " With a larger round_to, times jump less."


class Correction(NamedTuple):
    """What estimates are multiplied with to be exact near the target.

    Attributes:
        macs: for multiply-accumulates.
        time: for time; it aims at the middle of what is near enough, because of noise.
        slow: the largest factor of time that led to widths which were too slow.
        quick: the smallest one that led to widths which were not.
    """

    macs: float = 1.0
    time: float = 1 / _AIM
    slow: float = 0.0
    quick: float = inf

    @classmethod
    def learnt(cls, estimate: Cost, exact: Cost) -> Correction:
        """From a measurement at other widths."""
        return cls(time=exact.time / estimate.time / _AIM)

    def counted(self, estimate: Cost, exact: Cost, *, over: bool) -> Correction:
        """Corrected by a count, which was ``over`` the target or not."""
        return self._replace(macs=(1.001 if over else 1.0) * exact.macs / estimate.macs)

    def timed(self, estimate: Cost, exact: Cost, *, over: bool) -> Correction:
        """Corrected by a measurement.

        Neither noise nor widths that a machine likes or dislikes lead beyond what is known.
        """
        slow = max(self.slow, self.time) if over else self.slow
        quick = self.quick if over else min(self.quick, self.time)
        time = exact.time / estimate.time / _AIM
        if not slow < time < quick:
            known = slow > 0 and quick < inf
            time = sqrt(slow * quick) if known else self.time * (_NUDGE if over else 1 / _NUDGE)
        return self._replace(time=time, slow=slow, quick=quick)


_NONE = Correction()


class Fit(NamedTuple):
    """Widths, the factor that they come from, and what they cost."""

    factor: Fraction
    widths: Labels
    cost: Cost


def fit(
    costs: Costs,
    rooms: Sequence[Room],
    target: Target,
    remedy: str,
    correction: Correction = _NONE,
) -> Fit:
    """The widths whose exact cost is below the target and near it; without one, the rule's."""
    if not target:
        widths = scaled(rooms, Fraction(1))
        return Fit(Fraction(1), widths, costs.counted(widths))
    found = nearest(costs, rooms, target, correction)
    if found is None:
        lowest = costs.exact(scaled(rooms, Fraction(0)))
        raise target.refusal(lowest, costs.full, remedy)
    if not target.met(found.cost, costs.full) and (found.widths < costs.sizes).any():
        warnings.warn(
            f"No widths near the rule's come nearer: {target.reached(found.cost, costs.full)}."
            f"{_ADVICE if target.latency is not None and rooms[0].step == 1 else ''}",
            RsPruneWarning,
            stacklevel=5,
        )
    return found


def _used(costs: Costs, target: Target, correction: Correction, widths: Labels) -> Fraction:
    """How much of the target widths use up, by corrected estimates."""
    macs, params, time = costs.estimate(widths)
    corrected = Cost(macs * correction.macs, params, time * correction.time)
    return target.used(corrected, costs.full)


def guess(costs: Costs, rooms: Sequence[Room], target: Target) -> Fit:
    """Widths that meet the target by estimates alone."""
    factor, widths = search(rooms, partial(_used, costs, target, _NONE))
    return Fit(factor, widths, costs.counted(widths))


def nearest(
    costs: Costs, rooms: Sequence[Room], target: Target, correction: Correction = _NONE
) -> Fit | None:
    """The widths nearest to the target among those found below it; None if there are none."""
    if target.used(costs.full, costs.full) <= 1:
        return Fit(largest(rooms), scaled(rooms, largest(rooms)), costs.full)
    least = scaled(rooms, Fraction(0))
    timed = target.latency is not None
    below: list[Fit] = []
    above: list[Fit] = []  # too slow
    for _ in range(_CORRECTIONS):
        factor, widths = search(rooms, partial(_used, costs, target, correction))
        estimate, exact = costs.estimate(widths), costs.counted(widths)
        over = target.counts.used(exact, costs.full) > 1
        correction = correction.counted(estimate, exact, over=over)
        if timed and not over:  # else there is no need to measure
            exact = costs.exact(widths)
            over = target.used(exact, costs.full) > 1
            correction = correction.timed(estimate, exact, over=over)
            above += [Fit(factor, widths, exact)] if over else []
        if not over:
            below.append(Fit(factor, widths, exact))
        told = not timed and exact.macs == estimate.macs  # there is nothing to correct
        enough = timed and len(above) + len(below) == _MEASUREMENTS
        if told or enough or target.met(exact, costs.full) or (widths == least).all():
            break

    def used(one: Fit) -> Fraction:
        return target.used(one.cost, costs.full)

    if not below:
        lowest = Fit(Fraction(0), least, costs.exact(least) if timed else costs.counted(least))
        below = [lowest] if used(lowest) <= 1 else []
        if below and above:
            part = min(one.factor for one in above) / _PARTS  # estimates lead nowhere: by steps
            steps = [(part * n, scaled(rooms, part * n)) for n in range(_PARTS)]
            below += _halved(costs, target, _PARTS, steps.__getitem__)
    if below and above and not target.met(max(below, key=used).cost, costs.full):
        low, high = max(below, key=used), min(above, key=used)
        if high.factor <= _ALIKE * low.factor:  # else groups would lose their proportions
            below += _between(costs, target, low, high)
    return max(below, key=used, default=None)


def _between(costs: Costs, target: Target, low: Fit, high: Fit) -> list[Fit]:
    """Fits with the widths of ``low``, which is below the target, and for some groups of ``high``.

    On machines that like some widths and dislike others, time jumps with the factor, in which all
    groups change at once. Here a few change at a time.
    """
    groups = np.flatnonzero(low.widths != high.widths)

    def mixed(count: int) -> tuple[Fraction, Labels]:
        widths = low.widths.copy()
        widths[groups[:count]] = high.widths[groups[:count]]
        return low.factor, widths

    return _halved(costs, target, len(groups), mixed)


def _halved(
    costs: Costs, target: Target, last: int, made: Callable[[int], tuple[Fraction, Labels]]
) -> list[Fit]:
    """Fits below the target, found by halving: ``made(0)`` is below it, ``made(last)`` is not."""
    found = []
    first = 0
    for _ in range(_MEASUREMENTS):
        middle = (first + last) // 2
        if middle == first:
            break
        factor, widths = made(middle)
        fit = Fit(factor, widths, costs.exact(widths))
        if target.used(fit.cost, costs.full) > 1:
            last = middle
            continue
        first = middle
        found.append(fit)
        if target.met(fit.cost, costs.full):
            break
    return found
