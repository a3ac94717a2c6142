"""When the recursion ends: the paper's convergence criteria (section 3, after Algorithm 3).

The rounds stop when sparsity and size become flat, or when the validation accuracy regresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Accuracies come as means of float32 numbers: a difference this small (relative) is rounding.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Seen:
    """What the rules look at after a round's sparse training.

    Attributes:
        accuracy: on validation data.
        sparsity: the share of zeros among the weights of convolution and linear layers.
        size: the number of these weights, |M^t|.
    """

    accuracy: float
    sparsity: float
    size: int


@dataclass(frozen=True)
class Rules:
    """The limits of a recursion.

    Attributes:
        baseline: the accuracy of the given model.
        tolerance: how far below the baseline an accuracy may fall, in its units.
        flat: the relative change from which on sparsity or size count as changed.
    """

    baseline: float
    tolerance: float
    flat: float

    def regressed(self, accuracy: float) -> bool:
        """Whether ``accuracy`` lies below the baseline by more than the tolerance."""
        return self.baseline - accuracy > self.tolerance + _ROUNDING * abs(self.baseline)

    def why_stop(self, seen: Sequence[Seen]) -> str | None:
        """Why the rounds end with the last one ``seen``; None if they go on."""
        last = seen[-1]
        if self.regressed(last.accuracy):
            return (
                f"the accuracy regressed: {last.accuracy:.4f} after sparse training is more than "
                f"{self.tolerance:g} below the baseline of {self.baseline:.4f}"
            )
        if len(seen) > 1 and self._flat(seen[-2], last):
            return (
                "sparsity and size are flat: since the round before, neither changed by "
                f"{100 * self.flat:g} %"
            )
        return None

    def _flat(self, before: Seen, now: Seen) -> bool:
        return unchanged(before.sparsity, now.sparsity, self.flat) and unchanged(
            before.size, now.size, self.flat
        )


def unchanged(before: float, now: float, limit: float) -> bool:
    """Whether a figure stayed the same, or changed by less than ``limit``, relative to before."""
    return now == before or abs(now - before) < limit * abs(before)
