"""OBProx-SG as one would write it first: tensor by tensor, with boolean masks.

It is the slow twin of :class:`rsprune.optim.OBProxSG`, for lockstep tests and as a yardstick of
speed. ``y.add(x, alpha=a)`` stands for ``y + a x`` throughout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class MaskedOBProxSG(torch.optim.Optimizer):
    """The paper's update, with plain attributes for the schedule, as in the published code."""

    def __init__(
        self,
        params: Any,
        lr: float,
        lam: float = 1e-4,
        momentum: float = 0.0,
        nesterov: bool = False,
        prox_steps: int = 1000,
        orthant_steps: int | None = None,
    ) -> None:
        super().__init__(params, {"lr": lr, "lam": lam})
        self.momentum, self.nesterov = momentum, nesterov
        self.prox_steps, self.orthant_steps = prox_steps, orthant_steps
        self.taken = 0

    def in_prox_phase(self) -> bool:
        if self.orthant_steps is None:
            return self.taken < self.prox_steps
        return self.taken % (self.prox_steps + self.orthant_steps) < self.prox_steps

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.move(param, self.direction(param), group["lr"], group["lam"])
        self.taken += 1

    def direction(self, param: Tensor) -> Tensor:
        if not self.momentum:
            return param.grad
        state = self.state[param]
        old = state.get("momentum_buffer")
        new = param.grad.clone() if old is None else param.grad.add(old, alpha=self.momentum)
        state["momentum_buffer"] = new
        return param.grad.add(new, alpha=self.momentum) if self.nesterov else new

    def move(self, w: Tensor, d: Tensor, lr: float, lam: float) -> None:
        lam = lam / (1 - self.momentum)
        old = w.clone()
        if lam == 0:
            w.add_(d, alpha=-lr)
            return
        if self.in_prox_phase():
            v = w.add(d, alpha=-lr)
            t = lr * lam
            new = torch.zeros_like(v)
            new[v > t] = v[v > t] - t
            new[v < -t] = v[v < -t] + t
            forget = (new == 0) & (old != 0)
        else:
            s = torch.zeros_like(w)
            s[w > 0] = 1
            s[w < 0] = -1
            v = w.add(d.add(s, alpha=lam), alpha=-lr)
            new = torch.zeros_like(v)
            kept = (s != 0) & (v * s > 0)
            new[kept] = v[kept]
            forget = new == 0
        w.copy_(new)
        if self.momentum:
            self.state[w]["momentum_buffer"][forget] = 0
