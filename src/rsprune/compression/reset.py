"""``inherit=False``: the small network starts from fresh weights, as in "retrain"."""

from __future__ import annotations

from typing import Any

from torch import nn

from rsprune.errors import InvalidParameterError


def check_resets(model: nn.Module) -> None:
    """Refuse a module with parameters of its own that cannot be initialised anew."""
    for name, module in model.named_modules():
        own = [parameter for parameter in module._parameters.values() if parameter is not None]
        if own and _resetter(module) is None:
            raise InvalidParameterError(
                "compress", "inherit", "True for this model",
                f"False, but '{name}' ({type(module).__name__}) has no reset_parameters()",
                "Add that method, or initialise the result yourself.",
            )  # fmt: skip


def _resetter(module: nn.Module) -> Any:
    """torch's attention has the method under a private name."""
    attention = isinstance(module, nn.MultiheadAttention)
    return module._reset_parameters if attention else getattr(module, "reset_parameters", None)


def reset(model: nn.Module) -> None:
    """Initialise anew; what holds other modules comes after them."""
    for module in reversed(list(model.modules())):
        resetter = _resetter(module)
        if resetter is not None:
            resetter()
