"""What every sparse optimizer shares: parameter groups, checks, gradients, momentum, phases.

A subclass says what happens to the regularised parameters (``_update``); groups whose ``lam`` is 0
take torch's own SGD step. Step counters live in ``param_groups``, so ``state_dict`` carries them.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT
from torch.optim.sgd import sgd

from rsprune.checks import (
    check_choice,
    check_count,
    check_number,
    misspelt,
    refuse_unknown,
)
from rsprune.errors import GradientError, InvalidParameterError
from rsprune.optim._run import Update, run

NONFINITE_POLICIES = ("ignore", "skip", "raise")

Group = dict[str, Any]


class SparseOptimizer(Optimizer, ABC):
    """Base of the sparse optimizers; not for use by itself."""

    def __init__(self, params: ParamsT, defaults: Group, unknown: Iterable[str]) -> None:
        refuse_unknown(self._owner, unknown, self._keywords())
        if not isinstance(params, Tensor | set | dict):
            params = self._not_empty(list(params))
        super().__init__(params, {**defaults, "steps_taken": 0})

    @property
    def _owner(self) -> str:
        return type(self).__name__

    def _keywords(self) -> list[str]:
        signature = inspect.signature(type(self).__init__)
        return [name for name in signature.parameters if name not in ("self", "params", "unknown")]

    def _not_empty(self, params: list[Any]) -> list[Any]:
        if not params:
            raise InvalidParameterError(
                self._owner, "params", "a non-empty list of parameters", params,
                "Leave an empty group out; an exhausted generator must be made anew.",
            )  # fmt: skip
        return params

    # -- parameter groups and state ---------------------------------------------------------

    def add_param_group(self, param_group: Group) -> None:
        """Add a group after checking it; a group that is refused leaves the optimizer as it was."""
        group = dict(param_group)
        if "params" not in group:
            self._not_empty([])
        if not isinstance(group["params"], set):  # whose order torch refuses
            group["params"] = self._not_empty(as_list(group["params"]))
        for key in group:
            if misspelt(key, ["params", "param_names", *self._keywords()]):
                refuse_unknown(self._owner, [key], self._keywords())
        for param in tensors_of(group["params"]):
            if isinstance(param, Tensor) and not param.is_floating_point():
                raise InvalidParameterError(
                    self._owner, "params", "real floating-point tensors", param.dtype,
                    "Leave parameters of other types out of the optimizer.",
                )  # fmt: skip
        self._check({**self.defaults, **group})
        if self.param_groups:  # a late group joins the phase the others are in
            group.setdefault("steps_taken", self.param_groups[0]["steps_taken"])
        super().add_param_group(self._prepared(group))

    def _prepared(self, group: Group) -> Group:
        """A checked group as it shall be kept, for subclasses that keep more."""
        return group

    def _check(self, group: Group) -> None:
        """Check the hyper-parameters of one group (subclasses add their own)."""
        owner = self._owner
        check_number(owner, "lr", group["lr"], low=0, remedy="Typical values are 0.01 to 0.1.")
        check_number(
            owner, "lam", group["lam"], low=0,
            remedy="Use lam=0 for parameters that shall not become sparse.",
        )  # fmt: skip
        check_number(owner, "momentum", group["momentum"], low=0, high=1, remedy="Try 0.9.")
        check_number(owner, "weight_decay", group["weight_decay"], low=0)
        check_count(owner, "steps_taken", group["steps_taken"], low=0)
        check_choice(owner, "nesterov", group["nesterov"], (True, False))
        check_choice(owner, "on_nonfinite", group["on_nonfinite"], NONFINITE_POLICIES)
        check_choice(owner, "foreach", group["foreach"], (None, True, False))
        check_choice(owner, "fused", group["fused"], (None, True, False))
        if group["foreach"] and group["fused"]:
            raise InvalidParameterError(
                owner, "fused", "unset where foreach=True", True, "Choose one of the two."
            )
        if group["nesterov"] and not group["momentum"] > 0:
            raise InvalidParameterError(
                owner, "nesterov", "False where momentum is 0", True, "Set momentum, e.g. 0.9."
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, default in self.defaults.items():
                group.setdefault(name, default)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; settings it does not hold (as in SGD's state) keep their present values."""
        saved_groups = state_dict["param_groups"]
        if len(saved_groups) == len(self.param_groups):
            merged = [
                {
                    **{k: v for k, v in present.items() if k not in ("params", "param_names")},
                    **saved,
                }
                for present, saved in zip(self.param_groups, saved_groups, strict=True)
            ]
            for group in merged:
                self._check(group)
                if group.get("maximize"):
                    raise InvalidParameterError(
                        self._owner, "maximize", "absent or False", True,
                        "Only states of optimizers that minimise can be taken over.",
                    )  # fmt: skip
            state_dict = {**state_dict, "param_groups": merged}
        super().load_state_dict(state_dict)

    # -- the step ---------------------------------------------------------------------------

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step and return the closure's loss, if there is a closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_on_gradients()
        return loss

    def _step_on_gradients(self) -> None:
        self._check_gradients()
        if not self._finite_where_asked():
            return
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            if params and group["lam"] > 0:
                self._update(group, params, grads)
            elif params:
                self._sgd(group, params, grads)
            group["steps_taken"] += 1

    @abstractmethod
    def _update(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """Move the parameters of one regularised group."""

    def _sgd(self, group: Group, params: list[Tensor], grads: list[Tensor]) -> None:
        """Torch's own SGD, for groups without a penalty.

        Never torch's fused kernel, which rounds differently: foreach and fused shall agree.
        """
        momentum = float(group["momentum"])
        buffers = [self.state[p].get("momentum_buffer") if momentum else None for p in params]
        sgd(
            params, grads, buffers,
            foreach=group["foreach"] is not False, fused=False,
            weight_decay=float(group["weight_decay"]), momentum=momentum, lr=float(group["lr"]),
            dampening=0.0, nesterov=bool(group["nesterov"]), maximize=False,
        )  # fmt: skip
        if momentum:
            for param, buffer in zip(params, buffers, strict=True):
                self.state[param]["momentum_buffer"] = buffer

    # -- helpers for subclasses ---------------------------------------------------------------

    def _apply(
        self,
        update: Update,
        group: Group,
        params: list[Tensor],
        grads: list[Tensor],
        *state: str,
        **scalars: float,
    ) -> None:
        """Run an elementwise update on parameters with their gradients, state and momentum."""
        run(
            update,
            self._rows(group, params, grads, *state),
            foreach=group["foreach"] is not False,
            fused=bool(group["fused"]),
            momentum=float(group["momentum"]),
            nesterov=bool(group["nesterov"]),
            **scalars,
        )

    def _rows(
        self, group: Group, params: list[Tensor], grads: list[Tensor], *state: str
    ) -> list[list[Tensor]]:
        """One row per parameter: it, its gradient, the named state, momentum; zero where new."""
        if group["momentum"] > 0:
            state = (*state, "momentum_buffer")
        rows = []
        for param, grad in zip(params, grads, strict=True):
            own = self.state[param]
            for name in state:
                if name not in own:
                    own[name] = torch.zeros_like(param, memory_format=torch.preserve_format)
            rows.append([param.detach(), grad, *(own[name] for name in state)])
        return rows

    @staticmethod
    def _penalty(group: Group) -> float:
        """The penalty on the scale of the step: a momentum buffer sums to 1/(1-m) gradients."""
        return float(group["lam"]) / (1 - float(group["momentum"]))

    def _reach(self, group: Group, learning_rates: list[float]) -> float:
        """How far the penalty alone can move a weight of ``group`` in steps at these rates."""
        return self._penalty(group) * sum(learning_rates)

    def _sizes_and_slopes(self, group: Group) -> Iterator[tuple[Tensor, Tensor]]:
        """The sizes of what the penalty acts on, and of its gradient (0 if there is none)."""
        for param in group["params"]:
            slope = torch.zeros_like(param) if param.grad is None else param.grad
            yield param.detach().abs(), slope.abs()

    # -- gradients ----------------------------------------------------------------------------

    def _name(self, param: Tensor) -> str:
        for g, group in enumerate(self.param_groups):
            for i, other in enumerate(group["params"]):
                if other is param:
                    names = group.get("param_names")
                    shape = f"shape {tuple(param.shape)}"
                    return f"'{names[i]}' ({shape})" if names else f"{i} of group {g} ({shape})"
        raise KeyError("not a parameter of this optimizer")

    def _check_gradients(self) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                grad = param.grad
                if grad is None or (grad.layout == torch.strided and not grad.is_complex()):
                    continue
                kind = "complex" if grad.is_complex() else "sparse"
                raise GradientError(
                    f"{self._owner} takes dense real gradients. Got a {kind} gradient of parameter "
                    f"{self._name(param)} instead. Make it dense (for embeddings: sparse=False) or "
                    "leave the parameter out."
                )

    def _finite_where_asked(self) -> bool:
        """Apply ``on_nonfinite``: False to skip the step, an error to raise, else True."""
        for group in self.param_groups:
            if group["on_nonfinite"] == "ignore":
                continue
            params = [p for p in group["params"] if p.grad is not None]
            bad = _first_nonfinite([p.grad for p in params])
            if bad is None:
                continue
            if group["on_nonfinite"] == "skip":
                return False
            raise GradientError(
                f"The gradient of parameter {self._name(params[bad])} holds NaN or infinity; "
                f"{self._owner} changed nothing. Lower lr, clip the gradient, or choose "
                "on_nonfinite='skip' to leave out such steps."
            )
        return True


def _first_nonfinite(grads: list[Tensor]) -> int | None:
    """The index of the first gradient with a NaN or infinity.

    A sum is the cheapest read of a gradient, and no NaN or infinity leaves it finite; only where
    it is not finite (it may also have overflowed) is the gradient looked at element by element.
    """
    if not grads:
        return None
    sums = [grad.sum() for grad in grads]
    if bool(torch.stack([s.to(sums[0]) for s in sums]).isfinite().all()):
        return None
    return next((i for i, grad in enumerate(grads) if not bool(grad.isfinite().all())), None)


def as_list(params: Any) -> list[Any]:
    """A parameter group's ``params``, which may be a single tensor, as a list."""
    return [params] if isinstance(params, Tensor) else list(params)


def tensors_of(params: Any) -> list[Tensor]:
    """The tensors of a parameter group's ``params``, which may come with names."""
    return [entry[1] if isinstance(entry, tuple) else entry for entry in as_list(params)]
