"""Sizes of an input as they are typed: ``3x224x224``."""

from __future__ import annotations

from collections.abc import Iterable

from rsprune.errors import InvalidParameterError


def parse_sizes(owner: str, text: str, remedy: str) -> tuple[int, ...]:
    """``3x224x224`` as integers; ``owner`` and ``remedy`` are for the error."""
    parts = text.lower().split("x")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise InvalidParameterError(
            owner, "--input", "positive integers with an x between them", text, remedy
        )
    return tuple(map(int, parts))


def typed_sizes(sizes: Iterable[int]) -> str:
    """The reverse: integers as ``3x224x224``."""
    return "x".join(map(str, sizes))
