"""On convex problems with known optima the optimizers find the optimum, and its zeros.

Both figures are needed: an orthant step without its penalty term shows only in the objective, one
without its projection only in the sparsity. Two mutants keep that true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rsprune.optim import RDA, OBProxSG, ProxSG, ProxSVRG, obprox_sg
from rsprune.optim._run import Update
from tests.convex import LAM, PROBLEMS, Problem, gradient, solve

SEEDS = (0, 1, 2)

pytestmark = pytest.mark.filterwarnings("ignore:ProxSVRG.step without a snapshot")


def sparsity(w: Tensor) -> float:
    return (w == 0).double().mean().item()


def prox_sg(momentum: float = 0.0) -> Callable[[list[Tensor], float, int], ProxSG]:
    scale = 0.1 if momentum else 1.0
    return lambda params, lr, _: ProxSG(params, lr * scale, lam=LAM, momentum=momentum)


def obprox_sg_(
    momentum: float = 0.0, **more: Any
) -> Callable[[list[Tensor], float, int], OBProxSG]:
    scale = 0.1 if momentum else 1.0
    return lambda params, lr, epoch: OBProxSG(
        params, lr * scale, lam=LAM, momentum=momentum, prox_steps=5 * epoch, **more
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_obprox_sg_reaches_optimum_and_sparsity(
    problem: Problem, momentum: float, seed: int
) -> None:
    w = solve(problem, obprox_sg_(momentum), seed)
    low, high = problem.obprox_sparsity
    assert problem.gap(w) <= problem.max_gap
    assert low <= sparsity(w) <= high


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_prox_sg_reaches_optimum_but_stays_dense(problem: Problem, seed: int) -> None:
    w = solve(problem, prox_sg(), seed)
    assert problem.gap(w) <= problem.max_gap
    assert sparsity(w) <= problem.prox_sparsity


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_prox_sg_with_momentum_has_the_same_optimum(problem: Problem, seed: int) -> None:
    """It is sparser than without: momentum averages gradients, so that fewer zeros are lost."""
    w = solve(problem, prox_sg(0.9), seed)
    assert problem.gap(w) <= problem.max_gap
    assert sparsity(w) <= problem.obprox_sparsity[1]


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("make", [prox_sg, obprox_sg_])
def test_full_gradients_lead_to_the_exact_optimum(
    make: Callable[..., Any], momentum: float, nesterov: bool
) -> None:
    """Without noise the fixed points are F's, momentum or not.

    A zero weight must be able to gather momentum: if every zero forgot it at every step, a weight
    with lam < |grad f| < lam / (1 - m) could never leave zero.
    """
    problem = PROBLEMS[0]
    x, y = problem.data
    w = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = make(momentum)([w], problem.step_size / 0.3, 4000)
    optimizer.param_groups[0]["nesterov"] = nesterov
    optimizer.param_groups[0]["prox_steps"] = 3000
    for _ in range(6000):
        with torch.no_grad():
            w.grad = gradient(x, y, w)
        optimizer.step()
    assert abs(problem.gap(w.detach())) < 1e-9
    assert sparsity(w.detach()) == pytest.approx(0.508, abs=1e-3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rda_and_prox_svrg_on_digits(momentum: float, seed: int) -> None:
    problem = PROBLEMS[0]
    scale = 0.1 if momentum else 1.0
    averaged = solve(
        problem,
        lambda params, _lr, _n: RDA(params, lam=LAM, gamma=1 / (1 - momentum), momentum=momentum),
        seed,
    )
    reduced = solve(
        problem,
        lambda params, lr, _n: ProxSVRG(params, lr * scale, lam=LAM, momentum=momentum),
        seed,
    )
    assert problem.gap(averaged) <= 2e-2
    assert problem.gap(reduced) <= 2e-2


def test_a_run_that_ends_in_a_prox_phase_loses_its_zeros() -> None:
    """Why phase_schedule never ends in one."""
    problem = PROBLEMS[0]
    good = solve(problem, obprox_sg_(), seed=0, epochs=100)
    bad = solve(problem, obprox_sg_(), seed=0, epochs=105)
    assert sparsity(bad) < sparsity(good) / 2


def test_early_orthant_phase_for_good_prunes_too_much() -> None:
    """OBProx-SG+ after 10 % of the run loses features the optimum has; after 75 % it does not."""
    problem = PROBLEMS[2]
    true_features = solve(problem, lambda p, lr, _: ProxSVRG(p, lr, lam=LAM), seed=0) != 0

    def lost(share: float) -> int:
        def make(params: list[Tensor], lr: float, epoch: int) -> OBProxSG:
            steps = int(share * problem.epochs * epoch)
            return OBProxSG(params, lr, lam=LAM, prox_steps=steps, orthant_steps=None)

        return int((true_features & (solve(problem, make, seed=0) == 0)).sum())

    assert int(true_features.sum()) == 49
    assert lost(0.10) > 10
    assert lost(0.75) <= 2


# -- the two mistakes ---------------------------------------------------------------------------


def without_penalty(param: Tensor, grad: Tensor, **scalars: Any) -> None:
    """v = w - a g instead of v = w - a (g + lam sign(w)); with the projection."""
    sign = param.sign()
    trial = param.add(grad, alpha=-scalars["lr"])
    param.copy_(torch.where(trial * sign > 0, trial, 0.0))


def without_projection(param: Tensor, grad: Tensor, **scalars: Any) -> None:
    """w <- v everywhere but at zeros, where the sign leaves the weight."""
    sign = param.sign()
    trial = param.add(grad.add(sign, alpha=scalars["penalty"]), alpha=-scalars["lr"])
    param.copy_(torch.where(sign != 0, trial, 0.0))


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_mutant_without_penalty_fails_the_objective(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obprox_sg, "ORTHANT", Update(without_penalty, without_penalty))
    w = solve(problem, obprox_sg_(), seed=0)
    assert problem.gap(w) > problem.max_gap


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_mutant_without_projection_fails_the_sparsity(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obprox_sg, "ORTHANT", Update(without_projection, without_projection))
    w = solve(problem, obprox_sg_(), seed=0)
    assert problem.gap(w) <= problem.max_gap
    assert sparsity(w) < problem.obprox_sparsity[0]
