"""Prox-SG: proximal stochastic gradient for an l1 penalty (SPEC section 1).

    w <- soft(w - a g, a lam)

The baseline that OBProx-SG improves on: in stochastic training it stays almost dense.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from rsprune.optim._run import Update
from rsprune.optim.base import Group, SparseOptimizer
from rsprune.optim.prox import Scalar, axpy, soft_threshold

_softshrink = torch.ops.aten.softshrink.out
_hardtanh_backward = torch.ops.aten.hardtanh_backward.grad_input


class ProxSG(SparseOptimizer):
    r"""Proximal stochastic gradient on ``f(w) + lam ||w||_1``.

    .. code-block:: text

        b <- m b + g;   d <- g + m b if nesterov else b      (m = 0: d = g)
        w <- soft(w - lr d, lr lam / (1 - m))
        a weight that becomes zero forgets its momentum

    The threshold grows with 1/(1-m) because the buffer sums to that many gradients: the minimiser
    is the same for every momentum.

    Args:
        params: parameters or groups; :func:`rsprune.param_groups` makes suitable groups.
        lr: the step size.
        lam: the penalty; a group with ``lam=0`` takes plain SGD steps.
        momentum, nesterov: as in SGD.
        weight_decay: decay of the groups whose ``lam`` is 0; the others take none.
        on_nonfinite: what to do about NaN or infinite gradients: ``"ignore"`` (as SGD does),
            ``"skip"`` the whole step, or ``"raise"`` before anything changes.
        foreach: True (the default) for the fast in-place form, False for the literal one.
        fused: True to compile the update with ``torch.compile``.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        lam: float = 1e-4,
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
                "lr": lr, "lam": lam, "momentum": momentum, "nesterov": nesterov,
                "weight_decay": weight_decay, "on_nonfinite": on_nonfinite,
                "foreach": foreach, "fused": fused,
            },
            unknown,
        )  # fmt: skip

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        prox_step(self, group, params, grads)


def prox_step(
    optimizer: SparseOptimizer, group: Group, params: list[Tensor], grads: list[Tensor]
) -> None:
    """One proximal step on a regularised group (also the prox phase of OBProx-SG)."""
    lr = float(group["lr"])
    threshold = lr * optimizer._penalty(group)
    optimizer._apply(PROX, group, params, grads, lr=lr, threshold=threshold)


def update_momentum(
    grad: Tensor, buffer: Tensor | None, momentum: Scalar, nesterov: bool
) -> tuple[Tensor, Tensor | None]:
    """The direction to move against, and the new momentum buffer."""
    if buffer is None:
        return grad, None
    buffer = axpy(momentum, buffer, grad)
    return (axpy(momentum, buffer, grad) if nesterov else buffer), buffer


def update_momentum_(
    grad: Tensor, buffer: Tensor | None, momentum: float, nesterov: bool, out: Tensor
) -> Tensor:
    """As :func:`update_momentum`, in place; ``out`` is scratch for the Nesterov direction."""
    if buffer is None:
        return grad
    torch.add(grad, buffer, alpha=momentum, out=buffer)
    return torch.add(grad, buffer, alpha=momentum, out=out) if nesterov else buffer


def _prox_literal(
    param: Tensor,
    grad: Tensor,
    buffer: Tensor | None = None,
    *,
    lr: Scalar,
    threshold: Scalar,
    momentum: Scalar,
    nesterov: bool,
) -> None:
    direction, new_buffer = update_momentum(grad, buffer, momentum, nesterov)
    new = soft_threshold(axpy(-lr, direction, param), threshold)
    if buffer is not None and new_buffer is not None:
        became_zero = (new == 0) & (param != 0)
        buffer.copy_(torch.where(became_zero, 0.0, new_buffer))
    param.copy_(new)


def _prox_in_place(
    param: Tensor,
    grad: Tensor,
    buffer: Tensor | None = None,
    *,
    work: tuple[Tensor, Tensor],
    lr: float,
    threshold: float,
    momentum: float,
    nesterov: bool,
) -> None:
    if buffer is None:
        param.add_(grad, alpha=-lr)
        _softshrink(param, threshold, out=param)
        return
    trial = work[0]
    direction = update_momentum_(grad, buffer, momentum, nesterov, out=trial)
    torch.add(param, direction, alpha=-lr, out=trial)
    # hardtanh_backward(x, y, a, b) is x where a < y < b, else 0. First the old weight where the
    # new one is zero, that is where |trial| <= threshold; then the buffer where that left nothing.
    # A weight that stays zero therefore keeps its momentum, and can gather enough to leave.
    edge, least = _just_above(threshold, param.dtype), _just_above(0.0, param.dtype)
    _hardtanh_backward(param, trial, -edge, edge, grad_input=param)
    _hardtanh_backward(buffer, param, -least, least, grad_input=buffer)
    _softshrink(trial, threshold, out=param)


@lru_cache(maxsize=64)
def _just_above(threshold: float, dtype: torch.dtype) -> float:
    """The next number above ``threshold`` in the precision that the kernels compare in."""
    if dtype == torch.float64:
        return math.nextafter(threshold, math.inf)
    bounds = torch.tensor([threshold, math.inf], device="cpu", dtype=torch.float32)
    return torch.nextafter(bounds[0], bounds[1]).item()


PROX = Update(_prox_literal, _prox_in_place)
