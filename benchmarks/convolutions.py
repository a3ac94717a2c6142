"""A training step with the engine's own convolutions, beside torch's.

    python benchmarks/convolutions.py [--steps 7] [--sizes 32 16] [--networks vgg16 resnet20]
        [--precisions float32 bfloat16]

In float32 these are Winograd's, in bfloat16 those of small maps. Forward, backward and update of a
batch of 128 random images, channels last, with freed memory kept as in a run. Both ways take turns
on one network; the table has the medians, and how far the gradients of the first batch are from
those in float64, as a share of their norm.
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
from rsprune.engine.small_maps import SmallMaps
from rsprune.engine.winograd import Winograd
from rsprune.models import build

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OWN: dict[str, type[Winograd | SmallMaps]] = {"float32": Winograd, "bfloat16": SmallMaps}
Way = AbstractContextManager[Any]


class Training:
    """A network and a batch of one size, which steps in either way."""

    def __init__(self, name: str, precision: str, size: int) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = build(name).to(memory_format=torch.channels_last)
        for module in self.model.modules():
            module.train(not isinstance(module, nn.Dropout))  # whose lots depend on the precision
        self.dtype = PRECISIONS[precision]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.images = torch.randn(128, 3, size, size).to(memory_format=torch.channels_last)
        self.labels = torch.arange(128) % 10

    def gradient(self, way: Way) -> Tensor:
        """All gradients, in one vector."""
        self._backward(way)
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])

    def exact_gradient(self) -> Tensor:
        """The same in float64."""
        images, dtype = self.images, self.dtype
        self.model.double()
        self.images, self.dtype = images.double(), torch.float64
        found = self.gradient(nullcontext())
        self.model.float()
        self.images, self.dtype = images, dtype
        return found

    def _backward(self, way: Way) -> None:
        self.optimizer.zero_grad()
        with way, torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            scores = self.model(self.images)
        F.cross_entropy(scores.to(self.images.dtype), self.labels).backward()

    def seconds(self, way: Way) -> float:
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
    add("--networks", nargs="+", default=["vgg16", "resnet20"])
    add("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    options = parser.parse_args()
    keep_freed_memory()
    print(f"{torch.get_num_threads()} threads.\n")
    heads = "network | precision | image | torch, ms | own, ms | times faster"
    print(f"| {heads} | torch's error | own error |\n{'|---' * 8}|")
    for precision in options.precisions:
        ways: tuple[Way, ...] = nullcontext(), OWN[precision]()
        for name in options.networks:
            for size in options.sizes:
                row = f"| {name} | {precision} | {size} x {size} |"
                print(f"{row} {compared(Training(name, precision, size), ways, options.steps)}")


def compared(training: Training, ways: tuple[Way, ...], steps: int) -> str:
    """The rest of a row."""
    exact = training.exact_gradient()
    errors = [(training.gradient(way) - exact).norm() / exact.norm() for way in ways]
    rounds = [[training.seconds(way) for way in ways] for _ in range(2 + steps)]
    slow, quick = (statistics.median(times) for times in zip(*rounds[2:], strict=True))
    times = f"{1e3 * slow:.0f} | {1e3 * quick:.0f} | {slow / quick:.2f}"
    return f"{times} | {errors[0]:.0e} | {errors[1]:.0e} |"


if __name__ == "__main__":
    main()
