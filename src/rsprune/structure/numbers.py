"""Compares a pruned model with the full one in numbers: the dropped units are set to zero there."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from rsprune.errors import VerificationError
from rsprune.shadow import Arguments, named_tensors, replica, undisturbed
from rsprune.structure.layout import Labels
from rsprune.structure.tracer import TensorLabels, tensors_in


def set_to_zero(model: nn.Module, labels: TensorLabels, alive: Labels) -> None:
    """Set the dropped units of ``model`` to zero, in place."""
    tensors = named_tensors(model)
    with torch.no_grad():
        for name, dims in labels.items():
            for dim, own in dims.items():
                gone = np.flatnonzero(~alive[own])
                if gone.size:
                    index = torch.from_numpy(gone).to(tensors[name].device)
                    tensors[name].index_fill_(dim, index, 0)


def in_double(model: nn.Module) -> nn.Module:
    """A copy in double precision, in evaluation mode."""

    def double(tensor: Tensor) -> Tensor:
        value = tensor.detach().clone()
        value = value.double() if value.is_floating_point() else value
        return nn.Parameter(value, False) if isinstance(tensor, nn.Parameter) else value

    tensors = {name: double(tensor) for name, tensor in named_tensors(model).items()}
    return replica(model, tensors).eval()


def outputs(model: nn.Module, arguments: Arguments, *, whole: bool = False) -> list[Tensor]:
    """The outputs of a model in double precision.

    Args:
        model: in double precision.
        arguments: in any.
        whole: with the statistics that run over channels, which a cut changes.
    """
    args, kwargs = tree_map_only(
        Tensor, lambda t: t.double() if t.is_floating_point() else t, arguments
    )
    with undisturbed(), torch.no_grad(), nullcontext() if whole else _ScaleAndShift():
        return list(tensors_in(model(*args, **kwargs)))


def difference(expected: list[Tensor], actual: list[Tensor]) -> float:
    """The largest difference, relative to the largest output."""
    if [t.shape for t in expected] != [t.shape for t in actual]:
        raise VerificationError(
            f"The outputs have other shapes: {[tuple(t.shape) for t in actual]} instead of "
            f"{[tuple(t.shape) for t in expected]}."
        )
    largest = 0.0
    for a, b in zip(expected, actual, strict=True):
        if a.numel():
            scale = max(float(a.abs().max()), torch.finfo(torch.float64).tiny)
            apart = float((a.double() - b.double()).abs().max()) / scale
            largest = max(largest, apart if apart == apart else math.inf)
    return largest


class _ScaleAndShift(TorchFunctionMode):
    """Lets norms over channels scale and shift, and nothing else."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.local_response_norm:
            return args[0]
        if func not in (F.layer_norm, F.rms_norm, F.group_norm):
            return func(*args, **kwargs)
        given = [*args, *[None] * (4 - len(args))]
        weight = kwargs.get("weight", given[2])
        bias = None if func is F.rms_norm else kwargs.get("bias", given[3])
        x: Tensor = args[0]
        shape = (-1, *[1] * (x.dim() - 2)) if func is F.group_norm else x.shape[-1:]
        if weight is not None:
            x = x * (weight.view(shape) if weight.dim() == 1 else weight)
        return x if bias is None else x + (bias.view(shape) if bias.dim() == 1 else bias)
