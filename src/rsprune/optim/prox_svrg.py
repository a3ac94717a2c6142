"""Prox-SVRG: proximal stochastic variance-reduced gradient for an l1 penalty (SPEC section 1).

Xiao and Zhang, "A Proximal Stochastic Gradient Method with Progressive Variance Reduction".

    v = g(w) - g(w_ref) + full(w_ref);   w <- soft(w - a v, a lam)

Departure: the last iterate is kept, not the average of iterates, which is dense.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rsprune.errors import InvalidParameterError, RsPruneWarning
from rsprune.optim.prox_sg import ProxSG


class ProxSVRG(ProxSG):
    r"""Proximal SVRG on ``f(w) + lam ||w||_1``; takes the same arguments as :class:`ProxSG`.

    Call :meth:`snapshot` at the start of every outer iteration (usually an epoch), then
    ``step(closure)`` for every batch::

        for epoch in range(epochs):
            opt.snapshot(full_loss)          # zeroes, computes the mean loss of ALL data, backward
            for batch in loader:
                opt.step(lambda: batch_loss(batch))

    Each step calls its closure twice, at the weights and at the reference point, with the same of
    torch's random numbers (dropout masks). A closure that changes buffers, as batch norm
    does, changes them twice. The steps of all groups are variance-reduced. State: the reference
    point and its full gradient, besides the momentum buffer, if any. Before the first snapshot a
    step is Prox-SG's.
    """

    def snapshot(self, full_closure: Callable[[], Any]) -> Any:
        """Make the present weights the reference point.

        ``full_closure`` clears the gradients, runs the whole data set, and leaves the gradient of
        its mean loss in ``.grad``; what it returns is returned. The gradients are cleared after.
        """
        with torch.enable_grad():
            loss = full_closure()
        self._check_gradients()
        if self._finite_where_asked():
            for param in self._all_params():
                own = self.state[param]
                if param.grad is None:  # an old reference would bias its steps
                    own.pop("reference", None)
                    own.pop("full_grad", None)
                else:
                    own["reference"] = param.detach().clone()
                    own["full_grad"] = param.grad.detach().clone()
        self.zero_grad(set_to_none=True)
        return loss

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step on the batch that ``closure`` computes; return its loss."""
        held = [p for p in self._all_params() if "reference" in self.state.get(p, {})]
        if held and closure is None:
            raise InvalidParameterError(
                self._owner, "closure", "given to step() after a snapshot", None,
                "Pass a function that clears the gradients, computes the loss of the batch, calls "
                "backward and returns the loss: it is called at two points.",
            )  # fmt: skip
        if not held:
            _warn_no_snapshot(self._owner)
        before = _random_state()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        grads = {p: p.grad for p in self._all_params()}
        try:
            if held and closure is not None:
                self._reduce_variance(held, closure, before)
            self._step_on_gradients()
        finally:
            for param, grad in grads.items():
                param.grad = grad
        return loss

    def _reduce_variance(
        self, held: list[Tensor], closure: Callable[[], float], random_state: list[Any]
    ) -> None:
        """Replace the gradients g(w) by g(w) - g(w_ref) + full(w_ref)."""
        after = _random_state()
        weights = [p.detach().clone() for p in held]
        grads = {p: p.grad for p in self._all_params()}
        self.zero_grad(set_to_none=True)
        try:
            for param in held:
                param.copy_(self.state[param]["reference"])
            _set_random_state(random_state)
            with torch.enable_grad():
                closure()
        finally:
            _set_random_state(after)
            for param, weight in zip(held, weights, strict=True):
                param.copy_(weight)
        at_reference = {p: p.grad for p in held}
        for param, grad in grads.items():
            other = at_reference.get(param)
            param.grad = grad
            if grad is not None and other is not None:
                param.grad = grad - other + self.state[param]["full_grad"]

    def _all_params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]


def _random_state() -> list[Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), cuda]


def _set_random_state(state: list[Any]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])


def _warn_no_snapshot(owner: str) -> None:
    warnings.warn(
        f"{owner}.step without a snapshot is a Prox-SG step. Call snapshot(full_closure) at the "
        "start of every epoch.",
        RsPruneWarning,
        stacklevel=4,  # past step and torch's wrappers of it
    )
