"""HSPG: half-space stochastic projected gradient for group sparsity (SPEC section 1).

Chen et al., "Half-Space Proximal Stochastic Gradient Method for Group-Sparsity Regularized
Problem", Algorithms 1 to 3. Stage 1 is the proximal step of the mixed l1/l2 norm; stage 2 sets a
group to zero when its trial point leaves the half-space around the present one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from rsprune.checks import check_count, check_number
from rsprune.optim._run import Rows, try_compiled
from rsprune.optim.base import Group, SparseOptimizer, as_list, tensors_of
from rsprune.optim.prox import Scalar, axpy, group_shrink_factor, in_half_space
from rsprune.optim.prox_sg import update_momentum, update_momentum_
from rsprune.optim.slots import (
    GroupSource,
    Membership,
    along,
    group_norms,
    group_sums,
    listed,
    memberships,
    remaining,
    starts_in,
    sums_along,
    ungrouped,
)

Stage = Literal["prox", "half-space"]


class HSPG(SparseOptimizer):
    r"""Half-space stochastic projected gradient on ``f(x) + lam sum_g ||x_g||_2``.

    .. code-block:: text

        stage 1, prox_steps steps:
            y <- x - lr d;   x_g <- max(0, 1 - lr lam' / ||y_g||) y_g        (lam' = lam / (1 - m))
        stage 2, for good:
            t_g <- x_g - lr (d_g + lam' x_g / ||x_g||)
            x_g <- t_g if <t_g, x_g> >= eps ||x_g||^2, else 0; a zero group stays zero

    A group that becomes zero forgets its momentum.

    Args:
        params: parameters or groups; :func:`rsprune.param_groups` makes suitable groups.
        lr: the step size.
        lam: the penalty on every group's norm; a parameter group with ``lam=0`` takes SGD steps.
        prox_steps: the length of stage 1, N_P.
        eps: how far inside the half-space a group must stay, in [0, 1); larger is sparser.
        groups: a list of groups, each a collection of slots ``(parameter, dim, index)``, or a
            function from a list of parameters to such a list; None for one group per output
            filter. The slots of a group lie in one parameter group. What is in no group takes SGD
            steps. A parameter group may also bring its own under the key ``"groups"``; one that is
            added later must, or gets the default. A group acts through those of its parameters
            that have a gradient in a step.
        momentum, nesterov, weight_decay, on_nonfinite, foreach, fused: as in :class:`ProxSG`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        lam: float = 1e-4,
        prox_steps: int = 1000,
        eps: float = 0.0,
        groups: GroupSource | None = None,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        on_nonfinite: str = "ignore",
        foreach: bool | None = None,
        fused: bool | None = None,
        **unknown: Any,
    ) -> None:
        defaults = {
            "lr": lr, "lam": lam, "prox_steps": prox_steps, "eps": eps, "momentum": momentum,
            "nesterov": nesterov, "weight_decay": weight_decay, "on_nonfinite": on_nonfinite,
            "foreach": foreach, "fused": fused,
        }  # fmt: skip
        if groups is not None:
            params = self._distribute(params, groups)
        super().__init__(params, defaults, unknown)

    @property
    def phase(self) -> Stage:
        """The stage of the next step."""
        return _stage(self.param_groups[0])

    def _distribute(self, params: ParamsT, groups: GroupSource) -> list[Group]:
        """Hand every parameter group, unless it brings its own, the groups of its parameters."""
        entries = as_list(params)
        if not entries or not isinstance(entries[0], dict):
            entries = [{"params": entries}]
        entries = [{**entry, "params": as_list(entry.get("params", ()))} for entry in entries]
        if callable(groups):
            return [{"groups": groups, **entry} for entry in entries]
        left = listed(self._owner, groups)
        for entry in entries:
            if "groups" not in entry:
                own = set(tensors_of(entry["params"]))
                entry["groups"] = [group for group in left if starts_in(group, own)]
                left = [group for group in left if not starts_in(group, own)]
        memberships(self._owner, [], left)  # says what is wrong with groups of no parameter
        return entries

    def _prepared(self, group: Group) -> Group:
        """Turn the groups of a parameter group into numbers, which the state can hold."""
        source = group.pop("groups", None)
        if "members" not in group:
            params = tensors_of(group["params"])
            found = source(params) if callable(source) else source
            group["members"], group["group_count"] = memberships(self._owner, params, found)
        return group

    def _check(self, group: Group) -> None:
        super()._check(group)
        check_count(self._owner, "prox_steps", group["prox_steps"], low=0)
        check_number(
            self._owner, "eps", group["eps"], low=0, high=1, remedy="0 is the mildest choice."
        )

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        momentum = float(group["momentum"])
        lr, penalty = float(group["lr"]), self._penalty(group)
        arguments = {
            "members": self._members(group, params), "count": group["group_count"],
            "lr": lr, "momentum": momentum, "nesterov": bool(group["nesterov"]),
        }  # fmt: skip
        literal: Callable[..., None]
        in_place: Callable[..., None]
        if _stage(group) == "prox":
            literal, in_place = _prox_literal, _prox_in_place
            arguments["threshold"] = lr * penalty
        else:
            literal, in_place = _half_space_literal, _half_space_in_place
            arguments |= {"penalty": penalty, "eps": float(group["eps"])}
        rows = self._rows(group, params, grads)
        if group["fused"] and try_compiled(literal, rows, arguments):
            return
        (literal if group["foreach"] is False else in_place)(rows, **arguments)

    @staticmethod
    def _members(group: Group, params: list[Tensor]) -> list[Membership]:
        """The memberships of ``params``, on their devices."""
        place = {param: i for i, param in enumerate(group["params"])}
        for param in params:
            dim, ids = group["members"][place[param]]
            group["members"][place[param]] = (dim, ids.to(param.device))
        return [group["members"][place[param]] for param in params]

    def cut_members(self, kept: Mapping[Tensor, Mapping[int, Tensor]]) -> None:
        """Follow parameters that are about to be cut; groups of which nothing remains are gone.

        Args:
            kept: for every parameter, the indices that remain along the dimensions that are cut.
        """
        for group in self.param_groups:
            cuts = [kept.get(param, {}) for param in group["params"]]
            group["members"], group["group_count"] = remaining(
                group["members"], group["group_count"], cuts
            )

    def __repr__(self) -> str:
        """As other optimizers print, without the long lists of members."""
        members = [group.pop("members") for group in self.param_groups]
        try:
            return super().__repr__()
        finally:
            for group, own in zip(self.param_groups, members, strict=True):
                group["members"] = own

    def _sizes_and_slopes(self, group: Group) -> Iterator[tuple[Tensor, Tensor]]:
        params = [param.detach() for param in group["params"]]
        slopes = [
            torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in group["params"]
        ]
        members = self._members(group, group["params"])
        norms, slope_norms = (
            group_norms(tensors, members, group["group_count"])[:-1] for tensors in (params, slopes)
        )
        yield norms, slope_norms


def _stage(group: Group) -> Stage:
    return "prox" if group["steps_taken"] < group["prox_steps"] else "half-space"


def _buffer(row: Sequence[Tensor]) -> Tensor | None:
    return row[2] if len(row) > 2 else None


def _prox_literal(
    rows: Rows,
    *,
    members: list[Membership],
    count: int,
    lr: Scalar,
    threshold: Scalar,
    momentum: Scalar,
    nesterov: bool,
) -> None:
    moved = [update_momentum(row[1], _buffer(row), momentum, nesterov) for row in rows]
    trials = [axpy(-lr, d, row[0]) for row, (d, _) in zip(rows, moved, strict=True)]
    factor = group_shrink_factor(group_norms(trials, members, count), threshold)
    factor = ungrouped(factor, 1)
    became_zero = (factor == 0) & (group_norms([row[0] for row in rows], members, count) > 0)
    for row, trial, (_, new_buffer), member in zip(rows, trials, moved, members, strict=True):
        row[0].copy_(trial * along(factor, member, trial))
        if new_buffer is not None:
            row[2].copy_(torch.where(along(became_zero, member, trial), 0.0, new_buffer))


def _prox_in_place(
    rows: Rows,
    *,
    members: list[Membership],
    count: int,
    lr: float,
    threshold: float,
    momentum: float,
    nesterov: bool,
) -> None:
    params = [row[0] for row in rows]
    old_norms = group_norms(params, members, count) if momentum else None
    for row in rows:
        out = torch.empty_like(row[0]) if nesterov else row[0]
        direction = update_momentum_(row[1], _buffer(row), momentum, nesterov, out=out)
        row[0].add_(direction, alpha=-lr)
    factor = group_shrink_factor(group_norms(params, members, count), threshold)
    factor = ungrouped(factor, 1)
    for param, member in zip(params, members, strict=True):
        param.mul_(along(factor, member, param))
    if old_norms is not None:
        _clear_momentum(rows, members, (factor == 0) & (old_norms > 0))


def _half_space_literal(
    rows: Rows,
    *,
    members: list[Membership],
    count: int,
    lr: Scalar,
    penalty: Scalar,
    eps: Scalar,
    momentum: Scalar,
    nesterov: bool,
) -> None:
    params = [row[0] for row in rows]
    moved = [update_momentum(row[1], _buffer(row), momentum, nesterov) for row in rows]
    norms = group_norms(params, members, count)
    pull = ungrouped(torch.where(norms > 0, penalty / norms, 0.0), 0)
    trials = [
        axpy(-lr, x * along(pull, member, x) + d, x)
        for x, (d, _), member in zip(params, moved, members, strict=True)
    ]
    keep = _kept(trials, params, norms, members, eps)
    for row, trial, (_, new_buffer), member in zip(rows, trials, moved, members, strict=True):
        stays = along(keep, member, trial)
        row[0].copy_(torch.where(stays, trial, 0.0))
        if new_buffer is not None:
            row[2].copy_(torch.where(stays, new_buffer, 0.0))


def _half_space_in_place(
    rows: Rows,
    *,
    members: list[Membership],
    count: int,
    lr: float,
    penalty: float,
    eps: float,
    momentum: float,
    nesterov: bool,
) -> None:
    params = [row[0] for row in rows]
    norms = group_norms(params, members, count)
    pull = ungrouped(torch.where(norms > 0, penalty / norms, 0.0), 0)
    trials = []
    for row, member in zip(rows, members, strict=True):
        out = torch.empty_like(row[0]) if nesterov else row[0]
        direction = update_momentum_(row[1], _buffer(row), momentum, nesterov, out=out)
        trial = (row[0] * along(pull, member, row[0])).add_(direction)
        trials.append(torch.add(row[0], trial, alpha=-lr, out=trial))
    keep = _kept(trials, params, norms, members, eps)
    for param, trial, member in zip(params, trials, members, strict=True):
        torch.mul(trial, along(keep, member, trial), out=param)
    if momentum:
        _clear_momentum(rows, members, ~keep)


def _kept(
    trials: list[Tensor],
    params: list[Tensor],
    norms: Tensor,
    members: list[Membership],
    eps: Scalar,
) -> Tensor:
    """Which groups stay in their half-space; what is in no group stays."""
    products = (
        (sums_along(trial * x, member), member)
        for trial, x, member in zip(trials, params, members, strict=True)
    )
    inner = group_sums(products, len(norms) - 1)
    return ungrouped(in_half_space(inner, norms * norms, eps), 1)


def _clear_momentum(rows: Rows, members: list[Membership], cleared: Tensor) -> None:
    for row, member in zip(rows, members, strict=True):
        row[2].masked_fill_(along(cleared, member, row[2]), 0.0)
