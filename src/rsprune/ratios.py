"""How one number compares with another, in words that are true whichever is larger."""

from __future__ import annotations

_OTHERWISE = {"fewer": ("as many", "more"), "faster": ("as fast", "slower")}
_UNKNOWN = "\N{EN DASH}"


def compared(
    before: float, after: float, word: str = "fewer", form: str = ".2f", times: str = "x"
) -> str:
    """``7.18x fewer``, ``as many``, ``about as many`` or ``1.10x more``; a dash for a zero.

    Args:
        before: a number that is not negative.
        after: the number it became.
        word: ``fewer`` or ``faster``, for numbers that are better when smaller; what is counted may
            follow, as in ``fewer MACs``.
        form: of the ratio.
        times: the sign of multiplication.
    """
    comparative, *what = word.split(" ", 1)
    equal, opposite = _OTHERWISE[comparative]
    if before == after:
        return " ".join([equal, *what])
    if not before or not after:
        return _UNKNOWN
    larger = format(max(before, after) / min(before, after), form)
    if larger == format(1.0, form):
        return " ".join(["about", equal, *what])
    return " ".join([larger + times, comparative if before > after else opposite, *what])
