"""What a person should know about the outcome of a recursion, in words."""

from __future__ import annotations

from collections.abc import Sequence

from rsprune.recursion.result import Round
from rsprune.recursion.settings import Settings
from rsprune.recursion.stages import Candidate
from rsprune.recursion.stopping import Rules

_DIVERGED = "Try a lower learning rate, a lower lam, or gradient clipping."


def remarks(
    history: Sequence[Round], best: Candidate | None, rules: Rules, settings: Settings
) -> list[str]:
    """The outcomes that deserve a warning."""
    notes = []
    last = history[-1]
    if last.diverged is not None:
        notes.append(_DIVERGED)
    if best is None:
        if last.diverged is None:
            notes.append(f"lam={last.lam:g} is too high for this model, or explore too short.")
        notes.append("The given model is returned as it was.")
        return notes
    if best.diverged is not None:
        notes.append(f"Fine-tuning diverged ({best.diverged}) and was left out. {_DIVERGED}")
    if rules.regressed(best.accuracy):
        notes.append(
            f"The model returned is not within the tolerance: {best.accuracy:.4f} against "
            f"{rules.baseline:.4f}. Fine-tune longer, lower lam, or ask for fewer rounds"
            f"{' or a larger target' if settings.aimed else ''}."
        )
    if settings.aimed and last.after is None:
        notes.append("The target was not reached.")
    elif not settings.aimed and best.size == history[0].before:
        notes.append(
            f"No channel was cut: after sparse training {history[0].sparsity or 0:.1%} of the "
            "weights were zero. Raise lam, or explore longer."
        )
    return notes
