"""Range checks for hyper-parameters; each failure names owner, parameter, range, value, remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from torch import Tensor

from rsprune.errors import InvalidParameterError


def check_number(
    owner: str,
    name: str,
    value: Any,
    *,
    low: float,
    high: float = math.inf,
    open_low: bool = False,
    remedy: str = "",
) -> None:
    """Accept a finite real number in ``[low, high)``, or in ``(low, high)`` with ``open_low``."""
    allowed = f"a finite number in the range {'(' if open_low else '['}{low:g}, {high:g})"
    number = _as_float(value)
    if number is None or not (low < number if open_low else low <= number) or not number < high:
        raise InvalidParameterError(owner, name, allowed, value, remedy)


def _as_float(value: Any) -> float | None:
    """A real number, or tensor with one, as a finite float; None for anything else."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_meta or value.is_complex():
            return None
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def check_count(owner: str, name: str, value: Any, *, low: int, remedy: str = "") -> None:
    """Accept a whole number of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise InvalidParameterError(
            owner, name, f"a whole number in the range [{low}, inf)", value, remedy
        )


def check_choice(owner: str, name: str, value: Any, choices: Iterable[object]) -> None:
    """Accept one of ``choices``."""
    choices = tuple(choices)
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise InvalidParameterError(
            owner,
            name,
            f"one of {', '.join(map(repr, choices))}",
            value,
            did_you_mean(value, choices),
        )


def refuse_unknown(owner: str, unknown: Iterable[str], known: Iterable[str]) -> None:
    """Raise for the first unknown keyword, suggesting the closest known one."""
    known = sorted(known)
    for name in unknown:
        raise InvalidParameterError(
            owner,
            name,
            f"one of {owner}'s keywords ({', '.join(known)})",
            name,
            did_you_mean(name, known),
        )


# What other optimizers call our settings, too far from our names to be found by likeness.
_ALIASES = {"lambda": "lam", "lamda": "lam", "lambd": "lam", "l1": "lam", "learning_rate": "lr"}


def misspelt(name: str, known: Iterable[str]) -> bool:
    """Whether ``name`` is no known key but so near to one that it must be a slip.

    Keys such as ``max_momentum`` or ``lr_scale``, which schedulers and users add, are not slips.
    """
    known = list(known)
    if name in known or any(name.startswith(f"{k}_") or name.endswith(f"_{k}") for k in known):
        return False
    return name in _ALIASES or bool(difflib.get_close_matches(name, known, n=1, cutoff=0.8))


def did_you_mean(value: object, choices: Iterable[object]) -> str:
    """The remedy for a name that is near to one of ``choices``, else nothing."""
    names = [str(choice) for choice in choices]
    alias = _ALIASES.get(str(value))
    near = [alias] if alias in names else difflib.get_close_matches(str(value), names, n=1)
    return f"Did you mean '{near[0]}'?" if near else ""
