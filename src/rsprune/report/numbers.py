"""Numbers as people read them: short, with a unit, the same in HTML and Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rsprune.ratios import compared

ABSENT = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"
_TIMES = "\N{MULTIPLICATION SIGN}"


def count(value: float | None) -> str:
    """``15,253,578``."""
    return ABSENT if value is None else f"{value:,}"


def short(value: float | None) -> str:
    """``15.25 M``; small numbers in full."""
    if value is None or value < 10_000_000:
        return count(value)
    return f"{value / 1e6:.4g} M" if value < 1e9 else f"{value / 1e9:.4g} G"


def percent(value: float | None) -> str:
    """A fraction as ``98.61 %``."""
    return ABSENT if value is None else f"{100 * value:.2f} %"


def seconds(value: float | None) -> str:
    """``1.24 ms``, ``61.2 s``, ``2 h 05 min``."""
    if value is None:
        return ABSENT
    if value < 1e-3:
        return f"{1e6 * value:.0f} µs"
    if value < 1:
        return f"{1e3 * value:.2f} ms"
    if value < 120:
        return f"{value:.1f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(value: float | None) -> str:
    """Bytes, as ``59.6 MB``."""
    return ABSENT if value is None else f"{value / 2**20:.1f} MB"


def penalty(value: float | None) -> str:
    """lambda, as ``1e-3`` or ``3.5e-4``."""
    if not value:
        return ABSENT if value is None else "0"
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{float(digits):g}e{int(exponent)}"


def shape(sizes: Sequence[int]) -> str:
    """``32 x 1 x 3 x 3``."""
    return f" {_TIMES} ".join(map(str, sizes))


def ratio(before: float | None, after: float | None, word: str) -> str:
    """``7.2x fewer``, ``as many`` or ``1.1x more``, for a word that begins so; or ``faster``."""
    if before is None or after is None:
        return ABSENT
    return compared(before, after, word, ".3g", _TIMES)


def times(value: float) -> str:
    """``7.18x``."""
    return f"{value:.2f}{_TIMES}"


def points(before: float | None, after: float | None) -> str:
    """The change of an accuracy, as ``+0.28 points``."""
    if before is None or after is None:
        return ABSENT
    change = round(100 * (after - before), 2)
    sign = _MINUS if change < 0 else "+" if change > 0 else "±"
    return f"{sign}{abs(change):.2f} points"
