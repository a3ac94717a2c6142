"""Splits a model's parameters into those that become sparse and those that do not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from rsprune.checks import check_number
from rsprune.errors import InvalidParameterError, RsPruneWarning
from rsprune.layers import computed_weights, layer_weights


def param_groups(
    model: nn.Module,
    *,
    lam: float,
    weight_decay: float | None = None,
    exclude: Callable[[str, nn.Parameter], bool] | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for a sparse optimizer.

    The weights of convolution and linear layers get the penalty ``lam``; all other parameters
    (biases, norms, embeddings) get ``lam=0`` and, if given, ``weight_decay``. Weights that are
    computed from other parameters, as by ``spectral_norm``, cannot become zero; a warning names
    them.

    Args:
        model: any module.
        lam: the penalty of the regularised weights.
        weight_decay: the decay of the other parameters; None leaves it to the optimizer.
        exclude: called with the name and the parameter of each weight; True keeps the penalty off
            it, e.g. ``lambda name, p: name.startswith("head.")``.
    """
    if not isinstance(model, nn.Module):
        raise InvalidParameterError(
            "param_groups", "model", "a torch.nn.Module", type(model).__name__,
            "Pass the model itself, not its parameters.",
        )  # fmt: skip
    if exclude is not None and not callable(exclude):
        raise InvalidParameterError(
            "param_groups", "exclude", "a function of a name and a parameter", exclude,
            'For example lambda name, p: name.startswith("head.").',
        )  # fmt: skip
    check_number("param_groups", "lam", lam, low=0)
    if weight_decay is not None:
        check_number("param_groups", "weight_decay", weight_decay, low=0)
    sparse = [
        weight
        for name, weight in layer_weights(model).items()
        if exclude is None or not exclude(name, weight)
    ]
    if not sparse:
        raise InvalidParameterError(
            "param_groups", "model", "a module with convolution or linear weights to regularise",
            type(model).__name__,
            "Check the model, its parametrizations and the 'exclude' filter.",
        )  # fmt: skip
    computed = computed_weights(model)
    if computed:
        warnings.warn(
            f"{computed[0]} is computed from other parameters, which get no penalty "
            f"({len(computed)} such weights). Where it shall become sparse, remove the "
            "parametrization first: torch.nn.utils.parametrize.remove_parametrizations.",
            RsPruneWarning,
            stacklevel=2,
        )
    regularised = set(sparse)
    others = [p for p in model.parameters() if p not in regularised]
    groups: list[dict[str, Any]] = [{"params": sparse, "lam": lam}]
    if others:
        groups.append({"params": others, "lam": 0.0})
        if weight_decay is not None:
            groups[-1]["weight_decay"] = weight_decay
    return groups
