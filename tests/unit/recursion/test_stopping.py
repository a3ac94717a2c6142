"""When the rounds end, case by case."""

from __future__ import annotations

import pytest

from rsprune.recursion.stopping import Rules, Seen, unchanged

RULES = Rules(baseline=0.95, tolerance=0.01, flat=0.02)


def stops(*seen: tuple[float, float, int], rules: Rules = RULES) -> str:
    return rules.why_stop([Seen(*one) for one in seen]) or ""


def test_the_first_round_goes_on_while_accuracy_is_kept() -> None:
    assert stops((0.95, 0.8, 1000)) == ""
    assert stops((0.99, 0.0, 1000)) == ""


@pytest.mark.parametrize(
    ("accuracy", "regressed"),
    [(0.95, False), (0.945, False), (0.94, False), (0.9399, True), (0.1, True), (0.99, False)],
)
def test_accuracy_may_fall_by_the_tolerance_and_no_further(
    accuracy: float, regressed: bool
) -> None:
    assert RULES.regressed(accuracy) is regressed
    assert ("regressed" in stops((accuracy, 0.8, 1000))) is regressed


def test_the_edge_of_the_tolerance_does_not_depend_on_rounding() -> None:
    """0.8 - 0.1 is 0.7000000000000001 in floats, and float32 means are off by 1e-8."""
    rules = Rules(baseline=0.8, tolerance=0.1, flat=0.02)
    assert not rules.regressed(0.7)
    assert not rules.regressed(0.69999998)
    assert rules.regressed(0.6999)


def test_without_tolerance_any_loss_counts_and_a_gain_never() -> None:
    rules = Rules(baseline=0.9, tolerance=0.0, flat=0.02)
    assert not rules.regressed(0.9)
    assert not rules.regressed(0.95)
    assert rules.regressed(0.899)


def test_scores_below_zero_work() -> None:
    """A negative loss is a score as good as any."""
    rules = Rules(baseline=-0.5, tolerance=0.1, flat=0.02)
    assert not rules.regressed(-0.6)
    assert rules.regressed(-0.7)


def test_flat_needs_both_sparsity_and_size() -> None:
    before = (0.95, 0.50, 1000)
    assert "flat" in stops(before, (0.95, 0.505, 990))
    assert stops(before, (0.95, 0.505, 900)) == ""  # the size still falls
    assert stops(before, (0.95, 0.60, 990)) == ""  # the sparsity still changes
    assert stops(before, (0.95, 0.40, 990)) == ""  # in either direction


def test_flat_looks_at_the_last_two_rounds() -> None:
    assert stops((0.95, 0.5, 1000), (0.95, 0.5, 1000), (0.95, 0.7, 500)) == ""
    assert "flat" in stops((0.95, 0.9, 1000), (0.95, 0.5, 500), (0.95, 0.5, 500))


def test_regression_is_named_before_flatness() -> None:
    assert "regressed" in stops((0.95, 0.5, 1000), (0.5, 0.5, 1000))


@pytest.mark.parametrize(
    ("before", "now", "limit", "same"),
    [
        (100, 98.1, 0.02, True),
        (100, 98, 0.02, False),
        (100, 102, 0.02, False),
        (0, 0, 0.02, True),
        (0, 0.001, 0.02, False),
        (0.5, 0.5, 0.0, True),  # without a limit only what stays the same is flat
        (0.5, 0.51, 0.0, False),
    ],
)
def test_unchanged(before: float, now: float, limit: float, same: bool) -> None:
    """Less than the limit, relative to the value before."""
    assert unchanged(before, now, limit) is same
