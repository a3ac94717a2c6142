"""Targets: widths scaled by one factor until a model is as small as asked, and not smaller."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import numpy as np

from rsprune.compression.cost import Cost, Costs
from rsprune.errors import InvalidParameterError, RsPruneWarning
from rsprune.structure.layout import Labels

WITHIN = 0.02  # how far below a target a plan may stay
_NEAR = 0.995  # units are given back until this part of the target is used
_HALVINGS = 40
_CORRECTIONS = 12
_SWAPS = 200  # tries to come nearer by taking from one group for others


class Room(NamedTuple):
    """The widths a group may have: from ``floor`` to ``size``, in steps; ``rule`` is the rule's."""

    size: int
    floor: int
    rule: int
    step: int

    def rounded(self, width: int) -> int:
        """The nearest multiple of the step (ties up) between floor and size."""
        if self.step == 1:
            return min(self.size, max(self.floor, width))
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

    def __bool__(self) -> bool:
        return self.macs is not None or self.params is not None

    def used(self, cost: Cost, full: Cost) -> Fraction:
        """How much of the tighter target a cost uses up; more than 1 is too much."""
        parts = [(self.macs, cost.macs, full.macs), (self.params, cost.params, full.params)]
        return max(
            Fraction(part) / (Fraction(str(asked)) * Fraction(whole)) if whole else Fraction(0)
            for asked, part, whole in parts
            if asked is not None
        )


def fit(
    costs: Costs, rooms: Sequence[Room], target: Target, remedy: str
) -> tuple[Fraction, Labels]:
    """The factor, and the widths whose exact cost is below the target and near it."""
    least = _scaled(rooms, Fraction(0))
    found: list[tuple[Fraction, Fraction, Labels]] = []  # used, factor, widths
    correction = 1.0  # exact cost to estimate, near the target
    for _ in range(_CORRECTIONS):
        factor, widths = _search(costs, rooms, target, correction)
        exact, estimate = costs.exact(widths), costs.estimate(widths)
        used = target.used(exact, costs.full)
        if used <= 1:
            found.append((used, factor, widths))
        if exact == estimate or 1 - WITHIN <= used <= 1 or (widths == least).all():
            break
        correction = (1.001 if used > 1 else 1.0) * exact.macs / estimate.macs
    if not found:
        lowest = costs.exact(least)
        if target.used(lowest, costs.full) > 1:
            raise _too_small(target, lowest, costs.full, remedy)
        found.append((target.used(lowest, costs.full), Fraction(0), least))
    used, factor, widths = max(found, key=lambda entry: entry[0])
    if used < 1 - WITHIN and (widths < costs.sizes).any():
        _warn_coarse(target, costs.exact(widths), costs.full)
    return factor, widths


def _scaled(rooms: Sequence[Room], factor: Fraction) -> Labels:
    return np.array([room.scaled(factor) for room in rooms], dtype=np.int64)


def _search(
    costs: Costs, rooms: Sequence[Room], target: Target, correction: float
) -> tuple[Fraction, Labels]:
    """Bisection for the largest factor that fits, by estimates; then units are given back.

    Where that leaves too much unused, a group gives up a step for the sake of others.
    """

    def used(widths: Labels) -> Fraction:
        macs, params = costs.estimate(widths)
        return target.used(Cost(macs * correction, params), costs.full)

    high = max((Fraction(room.size, room.rule) for room in rooms), default=Fraction(1))
    if used(_scaled(rooms, high)) <= 1:
        return high, _scaled(rooms, high)
    low = Fraction(0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if used(_scaled(rooms, middle)) <= 1 else (low, middle)
        if (_scaled(rooms, low) == _scaled(rooms, high)).all():
            break
    free = [g for g, room in enumerate(rooms) if room.floor < room.size]
    widths = _filled(rooms, _scaled(rooms, low), free, used)
    best = widths
    for g, fewer in _lowered(rooms, widths, free):
        if used(best) >= 1 - WITHIN:
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


def _too_small(target: Target, lowest: Cost, full: Cost, remedy: str) -> InvalidParameterError:
    macs = Target(target.owner, target.macs, None)
    missed = bool(macs) and macs.used(lowest, full) > 1
    name, asked = ("target_macs", target.macs) if missed else ("target_params", target.params)
    possible = lowest.macs / full.macs if missed else lowest.params / full.params
    allowed = f"at least {ceil(possible * 10_000) / 10_000:.4f} for this model and these options"
    return InvalidParameterError(target.owner, name, allowed, asked, remedy)


def _warn_coarse(target: Target, cost: Cost, full: Cost) -> None:
    reached = [
        f"target_{name}={asked} comes out as {part / whole:.4f}"
        for name, asked, part, whole in (
            ("macs", target.macs, cost.macs, full.macs),
            ("params", target.params, cost.params, full.params),
        )
        if asked is not None
    ]
    warnings.warn(
        f"No widths near the rule's come nearer: {', '.join(reached)}.",
        RsPruneWarning,
        stacklevel=5,
    )
