"""What a sparse run is doing: exact zeros, zeros frozen by mistake, the reach of the penalty.

Each call reads the weights (and gradients) about once, so every epoch can afford them all.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from rsprune.checks import check_count
from rsprune.errors import GradientError, InvalidParameterError, RsPruneWarning
from rsprune.layers import layer_weights
from rsprune.optim.base import Group, SparseOptimizer


@dataclass(frozen=True)
class LayerSparsity:
    """The exact zeros of one layer's weight."""

    name: str
    zeros: int
    size: int

    @property
    def ratio(self) -> float:
        """The share of exact zeros."""
        return self.zeros / self.size if self.size else 0.0


@dataclass(frozen=True)
class Sparsity:
    """The exact zeros of every convolution and linear weight of a model; prints as a table."""

    layers: tuple[LayerSparsity, ...]

    @property
    def total(self) -> LayerSparsity:
        """All layers together."""
        return LayerSparsity(
            "total", sum(x.zeros for x in self.layers), sum(x.size for x in self.layers)
        )

    @property
    def ratio(self) -> float:
        """The share of exact zeros in all layers together."""
        return self.total.ratio

    def __str__(self) -> str:
        rows = [*self.layers, self.total]
        width = max(len(row.name) for row in rows)
        return "\n".join(
            f"{row.name:<{width}}  {row.zeros:>11,} of {row.size:>11,} zero  {row.ratio:6.1%}"
            for row in rows
        )


def sparsity(model: nn.Module) -> Sparsity:
    """Count the exact zeros of every convolution and linear weight."""
    weights = {name: weight.detach() for name, weight in layer_weights(model).items()}
    counts = [weight.numel() - torch.count_nonzero(weight) for weight in weights.values()]
    return Sparsity(
        tuple(
            LayerSparsity(name, int(count), weight.numel())
            for (name, weight), count in zip(weights.items(), counts, strict=True)
        )
    )


@dataclass(frozen=True)
class FrozenZeros:
    """Zeros that the optimality condition |grad f| <= lam would not keep, among all zeros."""

    wrong: int
    zeros: int


def wrongly_frozen(optimizer: SparseOptimizer) -> FrozenZeros:
    """Count the zeros (HSPG: the zero groups) whose gradient exceeds the penalty.

    Reads the gradients as they are: for an exact figure, leave the gradient of the mean loss over
    all data in ``.grad`` first. A single batch's gradient is noisier and counts too many. A
    parameter without a gradient counts as one with gradient 0.
    """
    optimizer = _sparse("wrongly_frozen", optimizer)
    groups = _regularised(optimizer)
    if all(param.grad is None for group in groups for param in group["params"]):
        raise GradientError(
            "wrongly_frozen reads the gradients, and there are none. Call backward on the mean "
            "loss over the data first, and zero_grad after."
        )
    wrong = zeros = 0
    with torch.no_grad():
        for group in groups:
            for size, slope in optimizer._sizes_and_slopes(group):
                zero = size == 0
                zeros += int(zero.sum())
                wrong += int((zero & (slope > group["lam"])).sum())
    return FrozenZeros(wrong, zeros)


@dataclass(frozen=True)
class Reach:
    """How far the penalty can pull the weights of one parameter group to zero."""

    distance: float  # the furthest a weight can be moved by the penalty in the steps that remain
    typical: float  # the mean size of a weight (HSPG: of a group's norm)
    share: float  # the share of weights (groups) that lie within the distance

    def __str__(self) -> str:
        return (
            f"reach {self.distance:.2g} against a mean weight of {self.typical:.2g}; "
            f"{self.share:.0%} of the weights lie within it"
        )


def reach(
    optimizer: SparseOptimizer,
    steps: int,
    lr_scheduler: LRScheduler | None = None,
    *,
    scheduler_every: int = 1,
) -> tuple[Reach, ...]:
    """The reach ``lam * sum(lr) / (1 - m)`` of each regularised group over the next ``steps``.

    Args:
        optimizer: with its weights as they are now.
        steps: the number of steps that remain.
        lr_scheduler: is played forward, on a copy, to know the learning rates to come; without
            one (or with ReduceLROnPlateau, which depends on the future) they stay as they are.
        scheduler_every: the scheduler is stepped once in so many steps (the steps of an epoch).
    """
    optimizer = _sparse("reach", optimizer)
    check_count("reach", "steps", steps, low=1)
    check_count("reach", "scheduler_every", scheduler_every, low=1)
    rates = _rates_to_come(optimizer, steps, lr_scheduler, scheduler_every)
    result = []
    with torch.no_grad():
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if not group["lam"] > 0:
                continue
            distance = optimizer._reach(group, rate)
            sizes = [s for s, _ in optimizer._sizes_and_slopes(group)]
            count = max(1, sum(s.numel() for s in sizes))
            total = sum(float(s.sum(dtype=torch.float64)) for s in sizes)
            within = sum(int((s <= distance).sum()) for s in sizes)
            result.append(Reach(distance, total / count, within / count))
    return tuple(result)


def warn_if_out_of_reach(
    optimizer: SparseOptimizer,
    steps: int,
    lr_scheduler: LRScheduler | None = None,
    *,
    scheduler_every: int = 1,
) -> tuple[Reach, ...]:
    """Warn where the penalty cannot reach the typical (median) weight in the steps that remain."""
    optimizer = _sparse("warn_if_out_of_reach", optimizer)
    found = reach(optimizer, steps, lr_scheduler, scheduler_every=scheduler_every)
    for group, one in zip(_regularised(optimizer), found, strict=True):
        if one.share < 0.5:
            warnings.warn(
                f"With lam={float(group['lam']):g} and {steps} steps the penalty has a {one}: most "
                "of them cannot become zero. Raise lam, train longer, or stay longer at a high lr.",
                RsPruneWarning,
                stacklevel=2,
            )
    return found


def _sparse(owner: str, optimizer: object) -> SparseOptimizer:
    """The sparse optimizer itself, where it is wrapped as accelerate does."""
    inner = getattr(optimizer, "optimizer", optimizer)
    if not isinstance(inner, SparseOptimizer):
        raise InvalidParameterError(
            owner, "optimizer", "a sparse optimizer of rsprune.optim", type(optimizer).__name__,
            "For example OBProxSG(rsprune.param_groups(model, lam=1e-3), lr=0.05).",
        )  # fmt: skip
    return inner


def _regularised(optimizer: SparseOptimizer) -> list[Group]:
    return [group for group in optimizer.param_groups if group["lam"] > 0]


def _rates_to_come(
    optimizer: SparseOptimizer, steps: int, lr_scheduler: LRScheduler | None, every: int
) -> list[list[float]]:
    """The learning rates of every group in each of the next steps."""
    if lr_scheduler is None or isinstance(lr_scheduler, ReduceLROnPlateau):
        return [[float(group["lr"])] * steps for group in optimizer.param_groups]
    stand_in = torch.optim.SGD(
        [
            {k: copy.deepcopy(v) for k, v in group.items() if k not in ("params", "param_names")}
            | {"params": [torch.zeros(())]}
            for group in optimizer.param_groups
        ]
    )
    rates: list[list[float]] = [[] for _ in optimizer.param_groups]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the stand-in takes no steps, which schedulers remark on
        # A scheduler may hold accelerate's wrapper or the optimizer itself.
        stand_ins = {id(lr_scheduler.optimizer): stand_in, id(optimizer): stand_in}
        player = copy.deepcopy(lr_scheduler, stand_ins)
        for step in range(1, steps + 1):
            for rate, group in zip(rates, stand_in.param_groups, strict=True):
                rate.append(float(group["lr"]))
            if step % every == 0 and step < steps:
                player.step()
    return rates
