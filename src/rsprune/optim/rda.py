"""RDA: regularised dual averaging for an l1 penalty (SPEC section 1).

Xiao, "Dual Averaging Methods for Regularized Stochastic Learning and Online Optimization",
Algorithm 1 with h(w) = ||w - w0||^2 / 2 and beta_k = gamma sqrt(k).

    w <- soft(w0 - (sqrt(k) / gamma) mean_grad, (sqrt(k) / gamma) lam)
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from rsprune.checks import check_number
from rsprune.optim._run import Update
from rsprune.optim.base import Group, SparseOptimizer
from rsprune.optim.prox import Scalar, axpy, soft_threshold
from rsprune.optim.prox_sg import update_momentum, update_momentum_

_softshrink = torch.ops.aten.softshrink.out


class RDA(SparseOptimizer):
    r"""Regularised dual averaging on ``f(w) + lam ||w||_1``.

    .. code-block:: text

        k <- k + 1;   total <- total + d
        w <- soft(w0 - total / (gamma sqrt(k)), sqrt(k) / gamma lam / (1 - m))

    ``k`` counts the steps of a parameter over the whole run and is never restarted; ``w0`` is the
    parameter as it was at its first step. Where ``lam`` or the momentum change, the mean over the
    steps counts. State: ``w0`` and ``total``, and the momentum buffer, if any. Momentum is never
    forgotten here: the dual average is the memory, and losing a part of it would bias it.

    Args:
        params: parameters or groups; :func:`rsprune.param_groups` makes suitable groups.
        lr: the step size of the groups whose ``lam`` is 0, which take plain SGD steps; the others
            have their own schedule, set by ``gamma``.
        lam: the penalty.
        gamma: the strength of the pull towards ``w0``; the k-th step has the size of an SGD step
            at the rate 1 / (gamma sqrt(k)).
        momentum, nesterov, weight_decay, on_nonfinite, foreach, fused: as in :class:`ProxSG`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        lam: float = 1e-4,
        gamma: float = 1.0,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        on_nonfinite: str = "ignore",
        foreach: bool | None = None,
        fused: bool | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr, "lam": lam, "gamma": gamma, "momentum": momentum, "nesterov": nesterov,
                "weight_decay": weight_decay, "on_nonfinite": on_nonfinite,
                "foreach": foreach, "fused": fused,
            },
            unknown,
        )  # fmt: skip

    def _check(self, group: Group) -> None:
        super()._check(group)
        check_number(
            self._owner, "gamma", group["gamma"], low=0, open_low=True,
            remedy="Larger values move more slowly.",
        )  # fmt: skip

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        batches: dict[tuple[int, float], tuple[list[Tensor], list[Tensor]]] = {}
        for param, grad in zip(params, grads, strict=True):
            own = self.state[param]
            if "initial" not in own:
                wide = torch.promote_types(param.dtype, torch.float32)
                own["initial"] = param.detach().clone()
                own["grad_sum"] = torch.zeros_like(param, dtype=wide)
                own["count"], own["mean_penalty"] = 0, self._penalty(group)
            own["count"] += 1
            # Exactly lam / (1 - m) while these do not change.
            own["mean_penalty"] += (self._penalty(group) - own["mean_penalty"]) / own["count"]
            batch = batches.setdefault((own["count"], own["mean_penalty"]), ([], []))
            batch[0].append(param)
            batch[1].append(grad)
        for (count, penalty), batch in batches.items():  # one, unless gradients come and go
            root_k = math.sqrt(count)
            self._apply(
                DUAL_AVERAGE, group, *batch, "initial", "grad_sum",
                scale=1 / (group["gamma"] * root_k),
                threshold=root_k / group["gamma"] * penalty,
            )  # fmt: skip

    def _sgd(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        super()._sgd(group, params, grads)
        for param in params:  # should the penalty come back, averaging begins anew from there
            for name in ("initial", "grad_sum", "count", "mean_penalty"):
                self.state.get(param, {}).pop(name, None)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; sums of half-precision gradients keep their precision."""
        super().load_state_dict(state_dict)
        params = [p for group in self.param_groups for p in group["params"]]
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        for number, param in zip(numbers, params, strict=True):
            saved = state_dict["state"].get(number, {})
            if "grad_sum" in saved:  # torch casts state to the type of the parameter
                self.state[param]["grad_sum"] = saved["grad_sum"].to(param.device, copy=True)

    def _reach(self, group: Group, learning_rates: list[float]) -> float:
        taken = group["steps_taken"]
        growth = math.sqrt(taken + len(learning_rates)) - math.sqrt(taken)
        return growth / float(group["gamma"]) * self._penalty(group)


def _literal(
    param: Tensor,
    grad: Tensor,
    initial: Tensor,
    grad_sum: Tensor,
    buffer: Tensor | None = None,
    *,
    scale: Scalar,
    threshold: Scalar,
    momentum: Scalar,
    nesterov: bool,
) -> None:
    direction, new_buffer = update_momentum(grad, buffer, momentum, nesterov)
    if buffer is not None and new_buffer is not None:
        buffer.copy_(new_buffer)
    total = grad_sum + direction
    grad_sum.copy_(total)
    param.copy_(soft_threshold(axpy(-scale, total, initial).to(param.dtype), threshold))


def _in_place(
    param: Tensor,
    grad: Tensor,
    initial: Tensor,
    grad_sum: Tensor,
    buffer: Tensor | None = None,
    *,
    work: tuple[Tensor, Tensor],
    scale: float,
    threshold: float,
    momentum: float,
    nesterov: bool,
) -> None:
    grad_sum.add_(update_momentum_(grad, buffer, momentum, nesterov, out=work[0]))
    torch.add(initial, grad_sum, alpha=-scale, out=param)
    _softshrink(param, threshold, out=param)


DUAL_AVERAGE = Update(_literal, _in_place)
