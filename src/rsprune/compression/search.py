"""The search for the widths that use up a budget: the rule's, scaled by one factor.

Where the cut is spread by cost, each group's share of that factor is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import numpy as np

from rsprune.compression.target import WITHIN
from rsprune.structure.layout import Labels

_NEAR = 0.995  # units are given back until this part of the target is used
_HALVINGS = 40
_SWAPS = 200  # tries to come nearer by taking from one group for others


class Room(NamedTuple):
    """The widths a group may have: from ``floor`` to ``size``, in steps; ``rule`` is the rule's.

    The factor that scales all groups is multiplied with ``worth`` for this one.
    """

    size: int
    floor: int
    rule: int
    step: int
    worth: Fraction = Fraction(1)

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
        """The rule's width times ``factor`` and the group's worth."""
        if self.floor == self.size:
            return self.size
        return self.rounded(ceil(self.rule * factor * self.worth))

    def above(self, width: int) -> int:
        """The next larger width."""
        return min(self.size, (width // self.step + 1) * self.step)

    def below(self, width: int) -> int:
        """The next smaller width."""
        return max(self.least, (-(-width // self.step) - 1) * self.step)


def largest(rooms: Sequence[Room]) -> Fraction:
    """The smallest factor with which no group is cut."""
    factors = (Fraction(room.size, room.rule) / room.worth for room in rooms)
    return max(factors, default=Fraction(1))


def scaled(rooms: Sequence[Room], factor: Fraction) -> Labels:
    """The rule's widths times ``factor``; 0 gives the smallest that there are."""
    return np.array([room.scaled(factor) for room in rooms], dtype=np.int64)


def search(rooms: Sequence[Room], used: Callable[[Labels], Fraction]) -> tuple[Fraction, Labels]:
    """Bisection for the largest factor that fits; then units are given back.

    Where that leaves too much unused, a group gives up a step for the sake of others.

    Args:
        rooms: the widths that groups may have.
        used: how much of the budget widths use up, by estimates; more than 1 is too much.
    """
    high = largest(rooms)
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
        uses = {g: used(more) for g, more in zip(free, steps, strict=True) if more is not None}
        for g in sorted(uses, key=lambda g: (-uses[g], g)):
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
