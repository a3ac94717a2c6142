"""The optimizers that a recipe asks for."""

from __future__ import annotations

import pytest

from rsprune.engine.optimizers import sparse
from rsprune.engine.recipe import Explore
from rsprune.models import SmallCNN


@pytest.mark.parametrize(("epochs", "share"), [(1.5, 0.25), (4.5, 0.75), (6.0, 0.5), (9.0, 0.5)])
def test_the_proximal_phase_is_as_long_as_asked(epochs: float, share: float) -> None:
    """If an orthant phase for good is left after it; else it is half of the stage."""
    settings = Explore(epochs=6, prox_epochs=epochs, orthant_epochs=0)  # type: ignore[call-arg]
    optimizer = sparse(SmallCNN(), settings, lam=1.0, steps=100)
    assert [group["prox_steps"] for group in optimizer.param_groups] == [600 * share] * 2
    assert all(group["orthant_steps"] is None for group in optimizer.param_groups)


@pytest.mark.parametrize("epochs", [1, 4, 5, 10])
def test_a_stage_too_short_for_both_phases_is_shared_by_them(epochs: int) -> None:
    settings = Explore(epochs=epochs, prox_epochs=5, orthant_epochs=5)  # type: ignore[call-arg]
    optimizer = sparse(SmallCNN(), settings, lam=1.0, steps=100)
    assert [group["prox_steps"] for group in optimizer.param_groups] == [50 * epochs] * 2
    assert [group["orthant_steps"] for group in optimizer.param_groups] == [50 * epochs] * 2
