"""The optimizers of a run: SGD, or one that makes zeros."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rsprune.engine.recipe import Explore, Training
from rsprune.engine.schedules import learning_rate
from rsprune.errors import RsPruneWarning
from rsprune.optim import HSPG, RDA, OBProxSG, ProxSG, ProxSVRG, param_groups, phase_schedule
from rsprune.optim.base import SparseOptimizer
from rsprune.optim.diagnostics import reach

_REACHED = 0.25  # of the weights: less is not worth the training
Units = Sequence[Sequence[tuple[Tensor, int, int]]]


def sgd(model: nn.Module, settings: Training) -> torch.optim.Optimizer:
    """SGD with momentum; biases and norms do not decay."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    other = [p for p in model.parameters() if p.dim() <= 1]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": other, "weight_decay": 0.0}]
    return torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.momentum > 0,
    )


def sparse(
    model: nn.Module, settings: Explore, lam: float, steps: int, units: Units | None = None
) -> SparseOptimizer:
    """The sparse optimizer of an exploring stage.

    Args:
        model: what is trained.
        settings: of the recipe.
        lam: the penalty of this round.
        steps: in an epoch.
        units: for HSPG, the slots of every unit that may become zero; None: whole filters.
    """
    prox, orthant = settings.prox_epochs, settings.orthant_epochs or None
    if orthant is None and prox >= settings.epochs:
        prox = settings.epochs / 2
    phases = phase_schedule(settings.epochs, steps, prox_epochs=prox, orthant_epochs=orthant)
    common: dict[str, Any] = {"lr": settings.lr, "momentum": settings.momentum}
    if settings.optimizer == "hspg":
        own = _unit_groups(model, lam, units) if units else param_groups(model, lam=lam)
        common |= {"prox_steps": phases.prox_steps, "eps": settings.half_space, "groups": units}
        optimizer: SparseOptimizer = HSPG(own, **common)
    else:
        groups = param_groups(model, lam=lam)
        makers: dict[str, Callable[[], SparseOptimizer]] = {
            "obprox-sg": lambda: OBProxSG(
                groups, **common, prox_steps=phases.prox_steps, orthant_steps=phases.orthant_steps
            ),
            "prox-sg": lambda: ProxSG(groups, **common),
            "rda": lambda: RDA(groups, **common, gamma=settings.dual_gamma),
            "prox-svrg": lambda: ProxSVRG(groups, **common),
        }
        optimizer = makers[settings.optimizer]()
    for group in optimizer.param_groups:
        group["weight_decay"] = settings.weight_decay
    _warn_if_weak(optimizer, settings, lam, settings.epochs * steps)
    return optimizer


def _unit_groups(model: nn.Module, lam: float, units: Units) -> list[dict[str, Any]]:
    """The parameters that units lie in, penalised, and the others."""
    within = {slot[0] for unit in units for slot in unit}
    inside = [p for p in model.parameters() if p in within]
    outside = [p for p in model.parameters() if p not in within]
    groups = [{"params": inside, "lam": lam}, {"params": outside, "lam": 0.0}]
    return [group for group in groups if group["params"]]


def _warn_if_weak(optimizer: SparseOptimizer, settings: Explore, lam: float, steps: int) -> None:
    """Say, before the stage, that its penalty cannot make zeros in the time it has."""
    mean = sum(learning_rate(settings, step, steps) for step in range(steps)) / steps
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = mean
    found = reach(optimizer, steps)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    if found and max(one.share for one in found) < _REACHED:
        warnings.warn(
            f"lambda = {lam:g} is weak for {steps} steps: {found[0]}. Few of them can become "
            "zero; raise explore.lam, explore.epochs or explore.lr.",
            RsPruneWarning,
            stacklevel=2,
        )
