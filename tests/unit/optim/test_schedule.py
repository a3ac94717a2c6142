"""Schedules never end in a prox phase, and stay near what was asked for."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rsprune.optim import OBProxSG, phase_schedule


def phases(prox: int, orthant: int | None, total: int) -> list[str]:
    w = nn.Parameter(torch.zeros(1))
    optimizer = OBProxSG([w], prox_steps=prox, orthant_steps=orthant)
    seen = []
    for _ in range(total):
        seen.append(optimizer.phase)
        optimizer.step()
    return seen


@given(
    epochs=st.integers(1, 60),
    loader=st.integers(1, 20),
    prox=st.sampled_from([0, 0.3, 1, 2, 5, 12]),
    orthant=st.integers(1, 12),
)
def test_never_ends_in_a_prox_phase(epochs: int, loader: int, prox: float, orthant: int) -> None:
    plan = phase_schedule(epochs, loader, prox_epochs=prox, orthant_epochs=orthant)
    assert plan.total_steps == epochs * loader
    seen = phases(plan.prox_steps, plan.orthant_steps, plan.total_steps)
    assert seen[-1] == "orthant"
    tail = len(seen) - max((i + 1 for i, phase in enumerate(seen) if phase == "prox"), default=0)
    assert plan.last_phase_steps == tail
    if plan.orthant_steps is not None:
        assert 2 * tail >= plan.orthant_steps
    if prox and plan.total_steps > 1:
        assert seen[0] == "prox"


def test_fits_exactly_where_it_can() -> None:
    plan = phase_schedule(100, range(57), prox_epochs=5, orthant_epochs=5)
    assert (plan.prox_steps, plan.orthant_steps, plan.last_phase_steps) == (285, 285, 285)


def test_stretches_the_orthant_phase_as_little_as_possible() -> None:
    plan = phase_schedule(105, 100, prox_epochs=5, orthant_epochs=5)
    assert (plan.prox_steps, plan.orthant_steps, plan.last_phase_steps) == (500, 550, 550)


def test_short_run_shares_one_cycle() -> None:
    plan = phase_schedule(3, 10, prox_epochs=5, orthant_epochs=5)
    assert (plan.prox_steps, plan.orthant_steps) == (15, 15)


def test_for_good() -> None:
    plan = phase_schedule(10, 10, prox_epochs=7.5, orthant_epochs=None)
    assert (plan.prox_steps, plan.orthant_steps, plan.last_phase_steps) == (75, None, 25)
    assert phases(75, None, 100)[-1] == "orthant"


def test_phases_follow_the_table() -> None:
    assert phases(2, 3, 8) == ["prox"] * 2 + ["orthant"] * 3 + ["prox"] * 2 + ["orthant"]
    assert phases(2, None, 5) == ["prox"] * 2 + ["orthant"] * 3
    assert phases(0, None, 2) == ["orthant"] * 2
