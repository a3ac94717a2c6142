"""Lengths of the phases, in steps, from epochs and the length of a loader."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

from torch.optim.lr_scheduler import LRScheduler

from rsprune.checks import check_count, check_number
from rsprune.errors import InvalidParameterError
from rsprune.optim.base import SparseOptimizer
from rsprune.optim.diagnostics import Reach, warn_if_out_of_reach


@dataclass(frozen=True)
class PhaseSchedule:
    """The phases of a run; pass ``prox_steps`` and ``orthant_steps`` to :class:`OBProxSG`."""

    total_steps: int
    prox_steps: int
    orthant_steps: int | None

    @property
    def last_phase_steps(self) -> int:
        """The length of the orthant phase in which the run ends."""
        if self.orthant_steps is None:
            return self.total_steps - self.prox_steps
        return _last_orthant(self.total_steps, self.prox_steps, self.orthant_steps)

    def check(
        self,
        optimizer: SparseOptimizer,
        lr_scheduler: LRScheduler | None = None,
        *,
        scheduler_every: int = 1,
    ) -> tuple[Reach, ...]:
        """Warn, before the run, where its penalty is too weak for its length to make zeros."""
        return warn_if_out_of_reach(
            optimizer, self.total_steps, lr_scheduler, scheduler_every=scheduler_every
        )


def phase_schedule(
    epochs: float,
    loader: Sized | int,
    *,
    prox_epochs: float = 5,
    orthant_epochs: float | None = 5,
) -> PhaseSchedule:
    """Phases of about these lengths for a run of ``epochs``, ending in an orthant phase.

    The orthant phase is stretched, by as little as possible, until the run ends in one that is at
    least half complete: a run that ends in a prox phase loses most of its zeros.

    Args:
        epochs: the length of the run.
        loader: the data loader, or the number of steps in an epoch.
        prox_epochs: the length of a prox phase; shortened where the run is too short for both.
        orthant_epochs: the length of an orthant phase; None: from the first one on, for good.
    """
    owner = "phase_schedule"
    steps = len(loader) if hasattr(loader, "__len__") else loader
    check_count(
        owner, "loader", steps, low=1,
        remedy="Pass a loader that has a length, or the number of steps in an epoch.",
    )  # fmt: skip
    check_number(owner, "epochs", epochs, low=0, open_low=True)
    check_number(owner, "prox_epochs", prox_epochs, low=0)
    total = max(1, round(epochs * steps))
    prox = max(1, round(prox_epochs * steps)) if prox_epochs > 0 else 0
    if orthant_epochs is not None:
        check_number(owner, "orthant_epochs", orthant_epochs, low=0, open_low=True)
    if orthant_epochs is None or prox == 0:
        if prox >= total:
            raise InvalidParameterError(
                owner, "prox_epochs", f"less than epochs ({epochs:g})", prox_epochs,
                "The run must end in an orthant phase.",
            )  # fmt: skip
        return PhaseSchedule(total, prox, None)
    orthant = max(1, round(orthant_epochs * steps))
    if prox + orthant > total:  # one cycle, shared out in the same proportion
        prox = max(1, prox * total // (prox + orthant)) if total > 1 else 0
        return PhaseSchedule(total, prox, total - prox)
    while 2 * _last_orthant(total, prox, orthant) < orthant:
        orthant += 1
    return PhaseSchedule(total, prox, orthant)


def _last_orthant(total: int, prox: int, orthant: int) -> int:
    """The length of the orthant phase at the end of the run, 0 where it ends in a prox phase."""
    return max(0, (total - 1) % (prox + orthant) + 1 - prox)
