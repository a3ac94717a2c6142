"""Ratios in words that are true whichever number is larger."""

from __future__ import annotations

import pytest

from rsprune.ratios import compared


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((718, 100), "7.18x fewer"),
        ((100, 110), "1.10x more"),
        ((100, 100), "as many"),
        ((1000, 1001), "as many"),  # which is 1.00
        ((100, 100, "fewer MACs"), "as many MACs"),
        ((3, 2, "faster", ".1f"), "1.5x faster"),
        ((2, 3, "faster", ".1f"), "1.5x slower"),
        ((72, 10, "fewer weights", ".3g", " times"), "7.2 times fewer weights"),
    ],
)
def test_ratios(arguments: tuple[float, float], words: str) -> None:
    assert compared(*arguments) == words
