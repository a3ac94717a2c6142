"""How many weights of every layer are exactly zero, in whole numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from rsprune.errors import InvalidParameterError
from rsprune.layers import layer_weights
from rsprune.shadow import check_model


class Sparsity(NamedTuple):
    """Exact zeros among a number of elements."""

    zeros: int
    elements: int

    @property
    def ratio(self) -> float:
        """The part of the elements that is zero."""
        return self.zeros / self.elements if self.elements else 0.0

    def __str__(self) -> str:
        return f"{self.zeros} of {self.elements} are zero ({self.ratio:.1%})"


def layer_sparsity(model: nn.Module) -> dict[str, Sparsity]:
    """Zeros and elements of every convolution, linear and attention weight, by name.

    Args:
        model: any module.
    """
    check_model("layer_sparsity", model)
    weights = layer_weights(model)
    for name, weight in weights.items():
        if weight.is_meta:
            raise InvalidParameterError(
                "layer_sparsity", "model", "a module with data",
                f"one whose '{name}' is on the meta device", "Load its weights first.",
            )  # fmt: skip
    return {
        name: Sparsity(weight.numel() - int(torch.count_nonzero(weight)), weight.numel())
        for name, weight in weights.items()
    }


def total(parts: list[Sparsity]) -> Sparsity:
    """Several counts as one."""
    return Sparsity(sum(p.zeros for p in parts), sum(p.elements for p in parts))
