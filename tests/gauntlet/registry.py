"""What an entry of the gauntlet is, and how small nets enter it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

IMAGE = (2, 3, 8, 8)  # batch 2, so that batch norm also trains on features of size one
Inputs = tuple[int, ...] | Callable[[torch.Generator], Any]


@dataclass(frozen=True)
class Entry:
    """A small net, its example inputs, and what the engine has to make of it.

    A layer in ``prunable``, ``either`` or ``frozen`` is a module or a tensor, with ``:dim`` for
    other dimensions than the first: ``conv1``, ``up:1``, ``tokens:2``.

    Attributes:
        name: the name of the net.
        make: makes the net.
        inputs: makes its example inputs from a random generator.
        prunable: layers that a prunable group has to hold.
        either: layers that a prunable group holds, unless ``graph.frozen`` says what prevents it.
        frozen: layers that no prunable group may hold, each with the operator to blame.
        statistics: normalises over channels, so that zeroing is not exact.
        literal: Python code holds a width, so that ``trace`` may warn.
        warns: the module that the warning about a literal width has to name.
        ignore: a warning of torch's own, as a pattern.
    """

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], Any]
    prunable: tuple[str, ...] = ()
    either: tuple[str, ...] = ()
    frozen: tuple[tuple[str, str], ...] = ()
    statistics: bool = False
    literal: bool = False
    warns: str = ""
    ignore: str = ""


class Net(nn.Module):
    """Named layers, parameters and numbers, and the function that runs them."""

    def __init__(self, run: Callable[..., Any], layers: dict[str, Any]) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.run = run

    def forward(self, *inputs: Any) -> Any:
        return self.run(self, *inputs)


ENTRIES: dict[str, Entry] = {}


def net(
    inputs: Inputs,
    prunable: str = "",
    *,
    either: str = "",
    frozen: str = "",
    statistics: bool = False,
    literal: bool = False,
    warns: str = "",
    ignore: str = "",
    name: str = "",
    **layers: Any,
) -> Callable[[Any], Any]:
    """Register the decorated module class, or forward function around ``layers``.

    ``prunable`` and ``either`` list layers, ``frozen`` lists ``layer=operator``.
    """

    def register(target: Any) -> Any:
        title = name or target.__name__
        if title in ENTRIES:
            raise KeyError(f"two nets are called {title}")
        make = target if isinstance(target, type) else lambda: Net(target, copy.deepcopy(layers))
        blamed = [pair.split("=") for pair in frozen.split()]
        ENTRIES[title] = Entry(
            title,
            make,
            inputs if callable(inputs) else lambda g: sample(inputs, g),
            tuple(prunable.split()),
            tuple(either.split()),
            tuple((layer, operator) for layer, operator in blamed),
            statistics,
            literal,
            warns,
            ignore,
        )
        return target

    return register


def sample(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def tokens(count: int, *shape: int) -> Callable[[torch.Generator], Tensor]:
    """Inputs that are integers below ``count``."""
    return lambda generator: torch.randint(count, shape, generator=generator)


def conv(inputs: int, outputs: int, kernel: int = 3, **settings: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, **settings)


def head(width: int, classes: int = 5) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))
