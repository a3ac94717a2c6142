"""Loops that follow a script instead of training, and a recursion on a toy network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from rsprune.recursion import PruneResult, recursive_prune
from tests.unit.recursion.toy import Net, X


def zeroing(share: float) -> Callable[[nn.Module, float], None]:
    """An explore that sets this share of every weight to zero."""

    def explore(model: nn.Module, _lam: float) -> None:
        with torch.no_grad():
            for weight in (model.conv1.weight, model.conv2.weight, model.fc.weight):
                flat = weight.view(-1)
                flat[: int(share * len(flat))] = 0

    return explore


def saying(*accuracies: float) -> Callable[[nn.Module], float]:
    """An evaluate that says these one after the other."""
    rest: Iterator[float] = iter(accuracies)
    return lambda _model: next(rest)


def prune(**changes: Any) -> PruneResult:
    """A recursion on a fresh network, with an accuracy that never changes unless said."""
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "explore": zeroing(0.5), "evaluate": lambda _: 0.9, "finetune": lambda _: None,
        "epsilon": 0.05,
    }  # fmt: skip
    return recursive_prune(Net(), X, **{**options, **changes})


def sizes(result: PruneResult) -> list[int]:
    return [one.before.weights for one in result.history]
