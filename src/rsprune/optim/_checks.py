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
    number: Any = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if (
        isinstance(number, bool)
        or not isinstance(number, Real)
        or not math.isfinite(float(number))
        or not (low < float(number) if open_low else low <= float(number))
        or not float(number) < high
    ):
        raise InvalidParameterError(owner, name, allowed, value, remedy)


def check_count(owner: str, name: str, value: Any, *, low: int, remedy: str = "") -> None:
    """Accept a whole number of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low:
        raise InvalidParameterError(
            owner, name, f"a whole number in the range [{low}, inf)", value, remedy
        )


def check_choice(owner: str, name: str, value: Any, choices: Iterable[object]) -> None:
    """Accept one of ``choices``."""
    choices = tuple(choices)
    if not any(value is choice or value == choice for choice in choices):
        raise InvalidParameterError(
            owner,
            name,
            f"one of {', '.join(map(repr, choices))}",
            value,
            _did_you_mean(value, choices),
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
            _did_you_mean(name, known),
        )


def misspelt(name: str, known: Iterable[str]) -> bool:
    """Whether ``name`` is no known key but so near to one that it must be a slip.

    Keys such as ``max_momentum``, which schedulers add, are not slips.
    """
    known = list(known)
    if name in known or any(name.endswith(f"_{key}") for key in known):
        return False
    return bool(difflib.get_close_matches(name, known, n=1, cutoff=0.65))


def _did_you_mean(value: object, choices: Iterable[object]) -> str:
    near = difflib.get_close_matches(str(value), [str(c) for c in choices], n=1, cutoff=0.6)
    return f"Did you mean '{near[0]}'?" if near else ""
