"""Targets: widths scaled by one factor until a model is as small as asked, and not smaller."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, inf, sqrt
from typing import NamedTuple

import numpy as np

from rsprune.compression.cost import Cost, Costs
from rsprune.errors import InvalidParameterError, RsPruneWarning
from rsprune.structure.layout import Labels

WITHIN = {"macs": 0.02, "params": 0.02, "latency": 0.05}  # how far below a target plans may stay
_NEAR = 0.995  # units are given back until this part of the target is used
_HALVINGS = 40
_CORRECTIONS = 12
_MEASUREMENTS = 6  # of whole models, which may have to be converted or compiled first
_AIM = 1 - WITHIN["latency"] / 2
_NUDGE = 1.03
_ALIKE = 1.2  # factors whose widths may be mixed
_PARTS = 2**_MEASUREMENTS  # of the way from the smallest widths
_ADVICE = " round_to=8 or 'auto' makes times jump less."
_SWAPS = 200  # tries to come nearer by taking from one group for others


class Room(NamedTuple):
    """The widths a group may have: from ``floor`` to ``size``, in steps; ``rule`` is the rule's."""

    size: int
    floor: int
    rule: int
    step: int

    def rounded(self, width: int) -> int:
        """The nearest multiple of the step (ties up) from floor on; the size itself stays."""
        if width >= self.size:
            return self.size
        if self.step == 1:
            return max(self.floor, width)
        nearest = (2 * width + self.step) // (2 * self.step) * self.step
        return min(self.size, max(self.least, nearest))

    @property
    def least(self) -> int:
        """The smallest width."""
        return min(self.size, -(-max(self.floor, 1) // self.step) * self.step)

    def scaled(self, factor: Fraction) -> int:
        """The rule's width times ``factor``."""
        if self.floor == self.size:
            return self.size
        return self.rounded(ceil(self.rule * factor))

    def above(self, width: int) -> int:
        """The next larger width."""
        return min(self.size, (width // self.step + 1) * self.step)

    def below(self, width: int) -> int:
        """The next smaller width."""
        return max(self.least, (-(-width // self.step) - 1) * self.step)


@dataclass(frozen=True)
class Target:
    """What was asked, as fractions of the given model."""

    owner: str
    macs: float | None
    params: float | None
    latency: float | None = None

    def __bool__(self) -> bool:
        return bool(self._asked)

    @property
    def counts(self) -> Target:
        """Without what has to be measured."""
        return replace(self, latency=None)

    @property
    def _asked(self) -> dict[str, float]:
        asked = {"macs": self.macs, "params": self.params, "latency": self.latency}
        return {name: fraction for name, fraction in asked.items() if fraction is not None}

    def used(self, cost: Cost, full: Cost) -> Fraction:
        """How much of the tightest target a cost uses up; more than 1 is too much."""
        return max(self._parts(cost, full).values(), default=Fraction(0))

    def met(self, cost: Cost, full: Cost) -> bool:
        """Whether a cost is below all targets, and near one of them."""
        parts = self._parts(cost, full)
        near = any(part >= 1 - WITHIN[name] for name, part in parts.items())
        return near and max(parts.values()) <= 1

    def _parts(self, cost: Cost, full: Cost) -> dict[str, Fraction]:
        """How much of each target a cost uses up."""
        return {
            name: share(name, cost, full) / Fraction(str(asked))
            for name, asked in self._asked.items()
        }

    def reached(self, cost: Cost, full: Cost) -> str:
        """What became of the tightest target."""
        parts = self._parts(cost, full)
        name = max(parts, key=parts.__getitem__)
        part = float(share(name, cost, full))
        return f"target_{name}={self._asked[name]} comes out as {part:.4f}"

    def refusal(self, lowest: Cost, full: Cost, remedy: str) -> InvalidParameterError:
        """That a target is out of reach; ``lowest`` is what the smallest widths cost."""
        name = next(name for name, part in self._parts(lowest, full).items() if part > 1)
        possible, digits, how = share(name, lowest, full), 4, ""
        if name == "latency":
            noisy = min(Fraction(1), possible * Fraction(102, 100))
            possible, digits, how = noisy, 2, " (measured)"
        least = ceil(possible * 10**digits) / 10**digits
        allowed = f"at least {least:.{digits}f}{how} for this model and these options"
        return InvalidParameterError(
            self.owner, f"target_{name}", allowed, self._asked[name], remedy
        )


def share(name: str, cost: Cost, full: Cost) -> Fraction:
    """A cost, by the name of its target, as a fraction of the full one."""
    part, whole = (getattr(one, "time" if name == "latency" else name) for one in (cost, full))
    return Fraction(part) / Fraction(whole) if whole else Fraction(0)


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


def guess(costs: Costs, rooms: Sequence[Room], target: Target) -> Fit:
    """Widths that meet the target by estimates alone."""
    factor, widths = search(costs, rooms, target, _NONE)
    return Fit(factor, widths, costs.counted(widths))


def nearest(
    costs: Costs, rooms: Sequence[Room], target: Target, correction: Correction = _NONE
) -> Fit | None:
    """The widths nearest to the target among those found below it; None if there are none."""
    if target.used(costs.full, costs.full) <= 1:
        return Fit(_largest(rooms), scaled(rooms, _largest(rooms)), costs.full)
    least = scaled(rooms, Fraction(0))
    timed = target.latency is not None
    below: list[Fit] = []
    above: list[Fit] = []  # too slow
    for _ in range(_CORRECTIONS):
        factor, widths = search(costs, rooms, target, correction)
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


def _largest(rooms: Sequence[Room]) -> Fraction:
    """The smallest factor with which no group is cut."""
    return max((Fraction(room.size, room.rule) for room in rooms), default=Fraction(1))


def scaled(rooms: Sequence[Room], factor: Fraction) -> Labels:
    """The rule's widths times ``factor``; 0 gives the smallest that there are."""
    return np.array([room.scaled(factor) for room in rooms], dtype=np.int64)


def search(
    costs: Costs, rooms: Sequence[Room], target: Target, correction: Correction
) -> tuple[Fraction, Labels]:
    """Bisection for the largest factor that fits, by estimates; then units are given back.

    Where that leaves too much unused, a group gives up a step for the sake of others.
    """

    def used(widths: Labels) -> Fraction:
        macs, params, time = costs.estimate(widths)
        corrected = Cost(macs * correction.macs, params, time * correction.time)
        return target.used(corrected, costs.full)

    high = _largest(rooms)
    if used(scaled(rooms, high)) <= 1:
        return high, scaled(rooms, high)
    low = Fraction(0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if used(scaled(rooms, middle)) <= 1 else (low, middle)
        if (scaled(rooms, low) == scaled(rooms, high)).all():
            break
    free = [g for g, room in enumerate(rooms) if room.floor < room.size]
    widths = _filled(rooms, scaled(rooms, low), free, used)
    best = widths
    for g, fewer in _lowered(rooms, widths, free):
        if used(best) >= 1 - WITHIN["macs"]:
            break
        others = [other for other in free if other != g]
        best = max(best, _filled(rooms, fewer, others, used), key=used)
    return low, best


def _lowered(
    rooms: Sequence[Room], widths: Labels, free: list[int]
) -> Iterator[tuple[int, Labels]]:
    """``widths`` with fewer steps for one group: one step first, then two, and so on."""
    fewer = dict.fromkeys(free, widths)
    for _ in range(_SWAPS // max(1, len(free))):
        for g in free:
            lower = _changed(fewer[g], g, rooms[g].below(int(fewer[g][g])))
            if lower is not None:
                fewer[g] = lower
                yield g, lower


def _filled(
    rooms: Sequence[Room], widths: Labels, free: list[int], used: Callable[[Labels], Fraction]
) -> Labels:
    """Give steps back, those that use most first, while they fit."""
    given = True
    while given and used(widths) < _NEAR:
        given = False
        steps = [_changed(widths, g, rooms[g].above(int(widths[g]))) for g in free]
        worth = {g: used(more) for g, more in zip(free, steps, strict=True) if more is not None}
        for g in sorted(worth, key=lambda g: (-worth[g], g)):
            more = _changed(widths, g, rooms[g].above(int(widths[g])))
            if more is not None and used(more) <= 1:
                widths, given = more, True
    return widths


def _changed(widths: Labels, g: int, width: int) -> Labels | None:
    """``widths`` with another one for group ``g``; None if it is the same."""
    if width == widths[g]:
        return None
    other: Labels = widths.copy()
    other[g] = width
    return other
