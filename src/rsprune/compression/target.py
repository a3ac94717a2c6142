"""What a budget asks for, and whether a cost meets it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from rsprune.compression.cost import Cost
from rsprune.errors import InvalidParameterError

WITHIN = {"macs": 0.02, "params": 0.02, "latency": 0.05}  # how far below a target plans may stay


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
