"""A recursion that trains for real, in a second; as a program, it kills itself at a given call.

    python -m tests.unit.recursion.toy DIRECTORY CALL

CALL counts the calls of explore, evaluate, finetune and on_event from 0.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rsprune
from rsprune.optim import OBProxSG
from rsprune.recursion import PruneResult, recursive_prune

X = torch.zeros(1, 1, 6, 6)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv1(x)).relu()
        x = self.conv2(x).relu().mean((2, 3))
        return self.fc(self.drop(x))


def data(seed: int) -> tuple[Tensor, Tensor]:
    """Vertical, horizontal or diagonal stripes, in noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(96) % 3
    rows, columns = torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij")
    kinds = torch.stack([rows % 2, columns % 2, (rows + columns) % 2]).float()
    noise = 0.3 * torch.randn(96, 6, 6, generator=generator)
    return (kinds[labels] + noise - 0.5)[:, None], labels


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    torch.manual_seed(0)
    model.train()
    images, labels = data(0)
    for _ in range(steps):
        index = torch.randint(len(labels), (32,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[index]), labels[index]).backward()
        optimizer.step()


def explore(model: nn.Module, lam: float) -> None:
    groups = rsprune.param_groups(model, lam=lam)
    optimizer = OBProxSG(groups, lr=0.1, momentum=0.9, prox_steps=5, orthant_steps=None)
    train(model, optimizer, 25)


def finetune(model: nn.Module) -> None:
    train(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), 10)


@torch.no_grad()
def evaluate(model: nn.Module) -> float:
    images, labels = data(1)
    return float((model.eval()(images).argmax(1) == labels).float().mean())


def trained_net() -> Net:
    torch.manual_seed(0)
    model = Net()
    finetune(model)
    finetune(model)
    return model


class Counter:
    """Counts the calls of several functions, and calls ``stop`` instead of, or after, one."""

    def __init__(self, at: int, stop: Callable[[], None], *, after: bool = False) -> None:
        self.calls: list[str] = []
        self.at, self.stop, self.after = at, stop, after

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            number = len(self.calls)
            self.calls.append(function.__name__)
            if number == self.at and not self.after:
                self.stop()
            result = function(*args)
            if number == self.at:
                self.stop()
            return result

        return counted


def noted(_event: dict[str, Any]) -> None:
    pass


def run(directory: Path | None, counter: Counter | None = None, **changes: Any) -> PruneResult:
    """The toy recursion: its third model loses accuracy, and the second cannot be mended."""
    count = counter or Counter(-1, lambda: None)
    arguments = {
        "model": trained_net(), "example_inputs": X, "directory": directory,
        "explore": count(explore), "evaluate": count(evaluate), "finetune": count(finetune),
        "on_event": count(noted), "lam": 0.006, "rounds": 3, "lambda_rule": "constant",
        "tolerance": 0.1,
    }  # fmt: skip
    return recursive_prune(**{**arguments, **changes})


def main(directory: str, call: str) -> None:
    torch.set_num_threads(1)
    result = run(Path(directory), Counter(int(call), lambda: os.kill(os.getpid(), signal.SIGKILL)))
    print(result)


if __name__ == "__main__":
    main(*sys.argv[1:])
