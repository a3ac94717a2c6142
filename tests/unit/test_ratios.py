"""Ratios in words that are true whichever number is larger."""

from __future__ import annotations

from typing import Any

import pytest

from rsprune.ratios import compared


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((718, 100), "7.18x fewer"),
        ((100, 110), "1.10x more"),
        ((100, 100), "as many"),
        ((1001, 1000), "about as many"),  # which is 1.00
        ((1000, 1001), "about as many"),
        ((100, 100, "fewer MACs"), "as many MACs"),
        ((0, 0), "as many"),
        ((5, 0), "\N{EN DASH}"),
        ((3, 2, "faster", ".1f"), "1.5x faster"),
        ((2, 3, "faster", ".1f"), "1.5x slower"),
        ((72, 10, "fewer weights", ".3g", " times"), "7.2 times fewer weights"),
    ],
)
def test_ratios(arguments: tuple[Any, ...], words: str) -> None:
    assert compared(*arguments) == words
