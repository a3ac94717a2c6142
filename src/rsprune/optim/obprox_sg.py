"""OBProx-SG: orthant-based proximal stochastic gradient (SPEC section 1).

Chen et al., "Orthant Based Proximal Stochastic Gradient Method for l1-Regularized Optimization",
Algorithms 1 to 3. A prox phase finds the orthant, an orthant phase optimises on its face and sets
what would leave it to zero. The counter of steps lives in ``param_groups``: a resumed run goes on
in its phase, where the published code starts its schedule anew.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from rsprune.checks import check_count
from rsprune.errors import InvalidParameterError
from rsprune.optim._run import Update
from rsprune.optim.base import Group, SparseOptimizer
from rsprune.optim.prox import Scalar, axpy, orthant_project
from rsprune.optim.prox_sg import prox_step, update_momentum, update_momentum_

_threshold_backward = torch.ops.aten.threshold_backward.grad_input

Phase = Literal["prox", "orthant"]


class OBProxSG(SparseOptimizer):
    r"""Orthant-based proximal stochastic gradient on ``f(w) + lam ||w||_1``.

    .. code-block:: text

        prox phase, prox_steps steps: as ProxSG
        orthant phase, orthant_steps steps:
            s <- sign(w)
            v <- w - lr (d + lam / (1 - m) s)
            w <- v where v s > 0, else 0          (an exact zero stays zero; it has no momentum)

    Args:
        params: parameters or groups; :func:`rsprune.param_groups` makes suitable groups.
        lr: the step size.
        lam: the penalty; a group with ``lam=0`` takes plain SGD steps.
        prox_steps: the length of a prox phase, N_P.
        orthant_steps: the length of an orthant phase, N_O; ``"prox_steps"`` (the default) makes it
            as long as the prox phase, None makes it last for good (OBProx-SG+).
        momentum, nesterov, weight_decay, on_nonfinite, foreach, fused: as in :class:`ProxSG`.

    A run should end in an orthant phase; :func:`rsprune.optim.phase_schedule` sees to that.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.1,
        *,
        lam: float = 1e-4,
        prox_steps: int = 1000,
        orthant_steps: int | Literal["prox_steps"] | None = "prox_steps",
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
                "lr": lr, "lam": lam, "prox_steps": prox_steps, "orthant_steps": orthant_steps,
                "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay,
                "on_nonfinite": on_nonfinite, "foreach": foreach, "fused": fused,
            },
            unknown,
        )  # fmt: skip

    @property
    def phase(self) -> Phase:
        """The phase of the next step."""
        return phase_of(self.param_groups[0])

    def _check(self, group: Group) -> None:
        super()._check(group)
        check_count(self._owner, "prox_steps", group["prox_steps"], low=0)
        steps = group["orthant_steps"]
        if steps == "prox_steps" and group["prox_steps"] == 0:
            raise InvalidParameterError(
                self._owner, "orthant_steps", "given where prox_steps is 0", steps,
                "Use orthant_steps=None to stay in the orthant phase.",
            )  # fmt: skip
        if steps is not None and steps != "prox_steps":
            check_count(
                self._owner, "orthant_steps", steps, low=1,
                remedy="Use None to stay in the orthant phase for good, or ProxSG to have none.",
            )  # fmt: skip

    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        if phase_of(group) == "prox":
            prox_step(self, group, params, grads)
        else:
            lr, penalty = float(group["lr"]), self._penalty(group)
            self._apply(ORTHANT, group, params, grads, lr=lr, penalty=penalty)


def phase_of(group: Group) -> Phase:
    """The phase of a group's next step."""
    step, prox_steps, orthant_steps = (
        group["steps_taken"], group["prox_steps"], group["orthant_steps"],
    )  # fmt: skip
    if orthant_steps is not None:
        step %= prox_steps + (prox_steps if orthant_steps == "prox_steps" else orthant_steps)
    return "prox" if step < prox_steps else "orthant"


def _orthant_literal(
    param: Tensor,
    grad: Tensor,
    buffer: Tensor | None = None,
    *,
    lr: Scalar,
    penalty: Scalar,
    momentum: Scalar,
    nesterov: bool,
) -> None:
    direction, new_buffer = update_momentum(grad, buffer, momentum, nesterov)
    sign = torch.sign(param)
    trial = axpy(-lr, axpy(penalty, sign, direction), param)
    new = orthant_project(trial, sign)
    if buffer is not None and new_buffer is not None:
        buffer.copy_(torch.where(new == 0, 0.0, new_buffer))
    param.copy_(new)


def _orthant_in_place(
    param: Tensor,
    grad: Tensor,
    buffer: Tensor | None = None,
    *,
    work: tuple[Tensor, Tensor],
    lr: float,
    penalty: float,
    momentum: float,
    nesterov: bool,
) -> None:
    sign, slope = work
    direction = update_momentum_(grad, buffer, momentum, nesterov, out=slope)
    torch.sign(param, out=sign)
    torch.add(direction, sign, alpha=penalty, out=slope)
    param.add_(slope, alpha=-lr)  # the trial point
    sign.mul_(param)  # > 0 where the trial point kept its sign
    # threshold_backward(x, y, 0) is x where y > 0, else 0: a projection without a boolean mask.
    _threshold_backward(param, sign, 0.0, grad_input=param)
    if buffer is not None:
        _threshold_backward(buffer, sign, 0.0, grad_input=buffer)


ORTHANT = Update(_orthant_literal, _orthant_in_place)
