"""A training step with Winograd's convolutions, beside torch's own.

    python benchmarks/winograd.py [--steps 7] [--sizes 32 16] [--networks vgg16 resnet20 resnet56]

Forward, backward and update of a batch of 128 random images in float32, channels last, with freed
memory kept as in a run. Both ways take turns on one network; the table has the medians, and how far
the gradients of the first batch are from those in float64, as a share of their norm.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rsprune.engine.memory import keep_freed_memory
from rsprune.engine.winograd import Winograd
from rsprune.models import build


class Training:
    """A network and a batch of one size, which steps in either way."""

    def __init__(self, name: str, size: int) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = build(name).to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.images = torch.randn(128, 3, size, size).to(memory_format=torch.channels_last)
        self.labels = torch.arange(128) % 10

    def gradient(self, way: AbstractContextManager[Any]) -> Tensor:
        """All gradients, in one vector."""
        self._backward(way)
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])

    def exact_gradient(self) -> Tensor:
        """The same in float64."""
        images = self.images
        self.model.double()
        self.images = images.double()
        found = self.gradient(nullcontext())
        self.model.float()
        self.images = images
        return found

    def _backward(self, way: AbstractContextManager[Any]) -> None:
        torch.manual_seed(1)  # of dropout
        self.optimizer.zero_grad()
        with way:
            loss = F.cross_entropy(self.model(self.images), self.labels)
        loss.backward()

    def seconds(self, way: AbstractContextManager[Any]) -> float:
        """How long a step takes."""
        began = time.perf_counter()
        self._backward(way)
        self.optimizer.step()
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--steps", type=int, default=7, help="of each way, after two to warm up (7)")
    add("--sizes", type=int, nargs="+", default=[32, 16], help="of images (32 16)")
    add("--networks", nargs="+", default=["vgg16", "resnet20", "resnet56"])
    options = parser.parse_args()
    keep_freed_memory()
    ways: tuple[AbstractContextManager[Any], ...] = nullcontext(), Winograd()
    print(f"{torch.get_num_threads()} threads.\n")
    heads = "torch, ms | Winograd, ms | times faster | torch's error | Winograd's"
    print(f"| network | image | {heads} |\n|---|---|---|---|---|---|---|")
    for name in options.networks:
        for size in options.sizes:
            training = Training(name, size)
            exact = training.exact_gradient()
            errors = [(training.gradient(way) - exact).norm() / exact.norm() for way in ways]
            rounds = [[training.seconds(way) for way in ways] for _ in range(2 + options.steps)]
            slow, quick = (statistics.median(times) for times in zip(*rounds[2:], strict=True))
            row = f"| {name} | {size} x {size} | {1e3 * slow:.0f} | {1e3 * quick:.0f} |"
            print(f"{row} {slow / quick:.2f} | {errors[0]:.0e} | {errors[1]:.0e} |", flush=True)


if __name__ == "__main__":
    main()
