"""on_nonfinite: a NaN or infinite gradient is ignored, skipped or raised, as the user chose."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from rsprune import GradientError
from tests.optimizers import CASES, Case

pytestmark = [
    pytest.mark.parametrize("case", CASES, ids=lambda case: case.name),
    pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf]),
    pytest.mark.filterwarnings("ignore:ProxSVRG.step without a snapshot"),
]


def two_params(bad: float) -> list[tuple[str, nn.Parameter]]:
    """The first gradient is good, so that a check that came too late would show."""
    named = [(name, nn.Parameter(torch.ones(3, 2))) for name in ("good", "bad")]
    for _, param in named:
        param.grad = torch.ones(3, 2)
    named[1][1].grad[1, 1] = bad
    return named


def test_skip_leaves_everything_as_it_was(case: Case, bad: float) -> None:
    named = two_params(bad)
    optimizer = case(named, on_nonfinite="skip", momentum=0.9)
    optimizer.step()
    assert all(torch.equal(param, torch.ones(3, 2)) for _, param in named)
    assert optimizer.param_groups[0]["steps_taken"] == 0
    named[1][1].grad[1, 1] = 1.0
    optimizer.step()
    assert not any(torch.equal(param, torch.ones(3, 2)) for _, param in named)


def test_raise_names_the_parameter_and_changes_nothing(case: Case, bad: float) -> None:
    named = two_params(bad)
    optimizer = case(named, on_nonfinite="raise", momentum=0.9)
    with pytest.raises(GradientError, match=r"parameter 'bad' \(shape \(3, 2\)\) holds NaN or inf"):
        optimizer.step()
    assert all(torch.equal(param, torch.ones(3, 2)) for _, param in named)
    assert optimizer.param_groups[0]["steps_taken"] == 0


def test_ignore_takes_the_step_and_keeps_the_damage_visible(case: Case, bad: float) -> None:
    """As SGD does: the other weights move, and the bad one does not turn into a quiet zero."""
    named = two_params(bad)
    case(named, on_nonfinite="ignore").step()
    good, hurt = (param for _, param in named)
    assert good.isfinite().all()
    assert not torch.equal(good, torch.ones(3, 2))
    assert not hurt.isfinite().all()


def test_a_sum_that_overflows_is_no_infinity(case: Case, bad: float) -> None:
    param = nn.Parameter(torch.ones(3))
    param.grad = torch.full((3,), 3e38 if bad > 0 else -3e38)
    optimizer = case([param], on_nonfinite="raise", lr=1e-38)
    optimizer.step()
    assert optimizer.param_groups[0]["steps_taken"] == 1
