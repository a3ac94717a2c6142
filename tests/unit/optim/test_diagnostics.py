"""The diagnostics count what they claim to count."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from rsprune import RsPruneWarning, param_groups
from rsprune.optim import HSPG, RDA, OBProxSG, ProxSG, phase_schedule
from rsprune.optim.diagnostics import reach, sparsity, warn_if_out_of_reach, wrongly_frozen


def test_sparsity_counts_exact_zeros_of_layer_weights() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(4, 5))
    with torch.no_grad():
        net[0].weight.fill_(1e-30)
        net[0].weight[0] = 0
        net[2].weight.zero_()
        net[2].weight[0, 0] = 1
        net[2].bias.zero_()  # no weight: does not count
    found = sparsity(net)
    assert [(x.name, x.zeros, x.size) for x in found.layers] == [
        ("0.weight", 9, 18),
        ("2.weight", 19, 20),
    ]
    assert found.ratio == 28 / 38
    assert str(found).splitlines()[-1].split() == ["total", "28", "of", "38", "zero", "73.7%"]


def test_wrongly_frozen_counts_zeros_with_a_steep_gradient() -> None:
    w = nn.Parameter(torch.tensor([0.0, 0.0, 0.0, 1.0]))
    free = nn.Parameter(torch.zeros(3))
    optimizer = OBProxSG([{"params": [w]}, {"params": [free], "lam": 0.0}], lam=0.1)
    w.grad, free.grad = torch.tensor([0.05, -0.2, 0.1, 5.0]), torch.ones(3)
    found = wrongly_frozen(optimizer)
    assert (found.wrong, found.zeros) == (1, 3)


def test_wrongly_frozen_counts_groups_for_hspg() -> None:
    w = nn.Parameter(torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]))
    optimizer = HSPG([w], lam=0.1)
    w.grad = torch.tensor([[0.09, 0.09], [0.05, 0.05], [9.0, 9.0]])
    found = wrongly_frozen(optimizer)
    assert (found.wrong, found.zeros) == (1, 2)


def test_reach_is_lam_times_the_sum_of_rates_over_one_minus_momentum() -> None:
    w = nn.Parameter(torch.tensor([0.001, -0.003, 0.004, 1.0]))
    optimizer = ProxSG([w], lr=0.1, lam=1e-4)
    (found,) = reach(optimizer, 350)
    assert found.distance == pytest.approx(0.0035)
    assert found.typical == pytest.approx(w.detach().abs().mean().item())
    assert found.share == 0.5
    (with_momentum,) = reach(ProxSG([w], lr=0.1, lam=1e-4, momentum=0.9), 350)
    assert with_momentum.distance == pytest.approx(0.035)
    (averaging,) = reach(RDA([w], lam=1e-4, gamma=0.5), 400)
    assert averaging.distance == pytest.approx(20 / 0.5 * 1e-4)
    late = RDA([w], lam=1e-4, gamma=0.5)
    late.param_groups[0]["steps_taken"] = 400
    (averaging,) = reach(late, 500)
    assert averaging.distance == pytest.approx((30 - 20) / 0.5 * 1e-4)
    (grouped,) = reach(HSPG([w], lr=0.1, lam=1e-4), 350)
    assert grouped.share == 0.5


def test_reach_is_no_more_than_what_steps_without_gradient_do() -> None:
    w = nn.Parameter(torch.full((5,), 1.0))
    optimizer = OBProxSG([w], lr=0.1, lam=0.01, prox_steps=3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    (expected,) = reach(optimizer, 20, schedule)
    for _ in range(20):
        w.grad = torch.zeros(5)
        optimizer.step()
        schedule.step()
    assert 1 - w[0].item() == pytest.approx(expected.distance, rel=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.1),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=12, cycle_momentum=False),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [
                torch.optim.lr_scheduler.LinearLR(o, total_iters=3),
                torch.optim.lr_scheduler.CosineAnnealingLR(o, 9),
            ],
            [3],
        ),
    ],
)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_reach_plays_schedulers_forward_and_leaves_them_alone(make, as_tensor: bool) -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = ProxSG([w], lr=0.1, lam=0.5)
    if as_tensor:  # which schedulers change in place
        optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    schedule = make(optimizer)
    before = float(optimizer.param_groups[0]["lr"]), schedule.state_dict()["last_epoch"]
    (found,) = reach(optimizer, 10, schedule, scheduler_every=1)
    assert (float(optimizer.param_groups[0]["lr"]), schedule.state_dict()["last_epoch"]) == before
    total = 0.0
    for _ in range(10):
        total += float(optimizer.param_groups[0]["lr"])
        w.grad = torch.zeros(3)
        optimizer.step()
        schedule.step()
    assert found.distance == pytest.approx(0.5 * total)


def test_reach_with_a_scheduler_stepped_once_an_epoch() -> None:
    optimizer = ProxSG([nn.Parameter(torch.ones(3))], lr=1.0, lam=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
    (found,) = reach(optimizer, 9, schedule, scheduler_every=4)
    assert found.distance == pytest.approx(4 * 1 + 4 * 0.1 + 0.01)


def test_warning_before_a_run_that_is_too_short() -> None:
    torch.manual_seed(0)
    net = nn.Conv2d(3, 8, 3)
    plan = phase_schedule(epochs=7, loader=50)
    settings = {"prox_steps": plan.prox_steps, "orthant_steps": plan.orthant_steps}
    with pytest.warns(RsPruneWarning, match=r"reach 0\.0035.*Raise lam"):
        plan.check(OBProxSG(param_groups(net, lam=1e-4), lr=0.1, **settings))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan.check(OBProxSG(param_groups(net, lam=1e-2), lr=0.1, **settings))


def test_works_through_accelerates_wrapper() -> None:
    from accelerate import Accelerator

    net = nn.Linear(3, 3)
    optimizer = ProxSG(param_groups(net, lam=1e-2), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    expected = reach(optimizer, 4, schedule)
    prepared, wrapped_schedule = Accelerator(cpu=True).prepare(optimizer, schedule)
    assert reach(prepared, 4, wrapped_schedule.scheduler) == expected


def test_warning_counts_the_steps_that_remain() -> None:
    optimizer = ProxSG([nn.Parameter(torch.full((4,), 0.05))], lr=0.1, lam=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_out_of_reach(optimizer, 60)
    with pytest.warns(RsPruneWarning):
        warn_if_out_of_reach(optimizer, 40)
