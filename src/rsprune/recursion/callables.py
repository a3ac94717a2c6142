"""Calls the user's own loops, and refuses what they should not return before it does harm."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from rsprune.errors import DivergenceError, InvalidParameterError
from rsprune.shadow import named_tensors

OWNER = "recursive_prune"


def check_callable(name: str, function: object, example: str) -> None:
    """Refuse what cannot be called."""
    if not callable(function):
        raise InvalidParameterError(
            OWNER, name, "a function", function, f"For example {name}={example}."
        )


def trained(name: str, function: Callable[..., Any], model: nn.Module, *args: Any) -> nn.Module:
    """The model that ``function`` trained: the one it returns, or ``model`` if it returns None.

    Raises:
        DivergenceError: if the function raises it, or leaves NaN or infinite weights behind.
    """
    shapes = _shapes(model)
    returned = function(model, *args)
    result = model if returned is None else returned
    allowed = "a function that returns the trained model, or None if it trained it in place"
    if not isinstance(result, nn.Module):
        raise InvalidParameterError(OWNER, name, allowed, f"one that returned {_shown(returned)}")
    if type(result) is not type(model) or _shapes(result) != shapes:
        raise InvalidParameterError(
            OWNER, name, allowed,
            f"one that returned a {type(result).__name__} unlike the {type(model).__name__} it got",
            "Return the model itself, not a wrapper around it or another one.",
        )  # fmt: skip
    for tensor_name, tensor in named_tensors(result).items():
        if not _healthy(tensor):
            raise DivergenceError(f"'{tensor_name}' holds NaN or infinite values")
    return result


def scored(evaluate: Callable[[nn.Module], Any], model: nn.Module) -> float:
    """What ``evaluate`` says about ``model``: one finite number."""
    value = evaluate(model)
    number: Any = value
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        number = value.item()
    if isinstance(number, bool) or not isinstance(number, Real) or not math.isfinite(number):
        raise InvalidParameterError(
            OWNER, "evaluate", "a function that returns one finite number, the higher the better",
            f"one that returned {_shown(value)}",
            "Return the accuracy on validation data as a float.",
        )  # fmt: skip
    return float(number)


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in named_tensors(model).items()}


def _healthy(tensor: Tensor) -> bool:
    """Whether a parameter is finite, a buffer not NaN: masks may well be infinite."""
    if not tensor.is_floating_point():
        return True
    if isinstance(tensor, nn.Parameter):
        return bool(torch.isfinite(tensor).all())
    return not bool(torch.isnan(tensor).any())


def _shown(value: object) -> str:
    if isinstance(value, Tensor) and value.numel() != 1:
        return f"a tensor of shape {tuple(value.shape)}"
    if value is None or isinstance(value, Real | Tensor | str):
        return repr(value)[:80]
    return f"a {type(value).__name__}"
