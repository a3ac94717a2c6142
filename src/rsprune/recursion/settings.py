"""The numbers that a recursion is called with, checked before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rsprune.checks import check_choice, check_count, check_number
from rsprune.compression.compress import MODES, SELECTIONS
from rsprune.compression.widths import Options
from rsprune.errors import InvalidParameterError
from rsprune.recursion.callables import OWNER
from rsprune.recursion.penalty import LAMBDA_RULES
from rsprune.recursion.result import Size

MEASURING = ("runtime", "batch", "threads")  # what says nothing unless times are measured
_OPTIONS = (
    "epsilon", "unit", "round_to", "spread", "target_macs", "target_params", "target_latency",
    *MEASURING,
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """As :func:`rsprune.recursive_prune` documents them; ``cut`` holds those of ``compress``."""

    lam: float
    rounds: int
    lambda_rule: str
    tolerance: float
    flat: float
    target_macs: float | None
    target_params: float | None
    target_latency: float | None
    cut: dict[str, Any]

    def __post_init__(self) -> None:
        check_number(
            OWNER, "lam", self.lam, low=0, open_low=True,
            remedy="The paper searches 1e-2, 1e-3, 1e-4 and 1e-5.",
        )  # fmt: skip
        check_count(OWNER, "rounds", self.rounds, low=1, remedy="1 is the paper's own setting.")
        check_choice(OWNER, "lambda_rule", self.lambda_rule, LAMBDA_RULES)
        check_number(OWNER, "tolerance", self.tolerance, low=0)
        check_number(OWNER, "flat", self.flat, low=0)
        check_choice(OWNER, "select", self.cut["select"], SELECTIONS)
        check_choice(OWNER, "mode", self.cut["mode"], MODES)
        self.options()
        if self.rounds > 1 and self.cut["spread"] == "cost":
            raise InvalidParameterError(
                OWNER, "spread", "'auto' or 'even' with more than one round", "cost",
                "Every round would cut anew where weights cost most, until little is left there.",
            )  # fmt: skip

    def options(self, **changes: Any) -> Options:
        """What widths have to be, checked."""
        known = {**self.cut, **vars(self), **changes}
        return Options(OWNER, **{name: known[name] for name in _OPTIONS})

    @property
    def aimed(self) -> bool:
        """Whether a target fixes the size."""
        asked = (self.target_macs, self.target_params, self.target_latency)
        return any(target is not None for target in asked)

    @property
    def measures(self) -> bool:
        """Whether cuts depend on times."""
        return self.target_latency is not None or self.cut["round_to"] == "auto"

    def targets(self, t: int, full: Size, now: Size, time: float = 1.0) -> dict[str, Any]:
        """The targets of round t as fractions of M^t.

        That has the size ``now`` and takes the part ``time`` of the time of M^0. The way to the
        target, a fraction of M^0, is shared out over the rounds in equal ratios; a round that
        begins below its aim is not to cut.
        """
        return {
            "target_macs": self._share(self.target_macs, t, full.macs / now.macs),
            "target_params": self._share(self.target_params, t, full.params / now.params),
            "target_latency": self._share(self.target_latency, t, 1 / time),
        }

    def _share(self, target: float | None, t: int, shrunk: float) -> float | None:
        if target is None:
            return None
        aim: float = float(target) ** ((t + 1) / self.rounds)
        return min(1.0, aim * shrunk)
