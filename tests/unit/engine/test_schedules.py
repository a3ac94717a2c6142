"""Learning rates: where they start, peak and end."""

from __future__ import annotations

import pytest

from rsprune.engine.recipe import Training
from rsprune.engine.schedules import learning_rate

TOTAL = 1000


def rates(**settings: object) -> list[float]:
    return [learning_rate(Training(lr=0.4, **settings), step, TOTAL) for step in range(TOTAL)]  # type: ignore[arg-type]


def test_cosine_falls_from_the_top_to_nothing() -> None:
    found = rates(schedule="cosine")
    assert found[0] == 0.4
    assert found[TOTAL // 2] == pytest.approx(0.2)
    assert found[-1] < 1e-5
    assert found == sorted(found, reverse=True)


def test_step_falls_at_its_milestones() -> None:
    found = rates(schedule="step", milestones=(0.5, 0.75), gamma=0.1)
    assert found[499] == 0.4
    assert found[500] == pytest.approx(0.04)
    assert found[750] == pytest.approx(0.004)


def test_one_cycle_rises_and_falls() -> None:
    found = rates(schedule="one-cycle")
    assert found[0] == pytest.approx(0.4 / 25)
    assert max(found) == found[300] == 0.4
    assert found[-1] < 1e-4


def test_constant() -> None:
    assert set(rates(schedule="constant")) == {0.4}


def test_warm_up_rises_to_the_top_and_the_schedule_follows() -> None:
    found = rates(schedule="cosine", warmup=0.1)
    assert found[0] == pytest.approx(0.004)
    assert max(found) == pytest.approx(0.4)
    assert found[:100] == sorted(found[:100])
    assert found[100] == pytest.approx(0.4)
    assert found[-1] < 1e-5


def test_warm_up_never_goes_above_the_top() -> None:
    """Whatever share of however few steps it is."""
    for total in (10, 25, 203):
        for share in (0.05, 0.1, 0.15):
            settings = Training(lr=0.4, warmup=share)
            found = [learning_rate(settings, step, total) for step in range(total)]
            assert max(found) <= 0.4
