"""What compress costs, beside one epoch of training.

    python benchmarks/compress.py [--rounds 3] [--steps 6]

The networks take images of CIFAR-10's size; three quarters of their weights are zero. An epoch is
50,000 images in batches of 128: its time is extrapolated from a few steps of SGD with momentum
(forward, backward, update) on random images, without reading or augmenting data. compress and the
steps take turns in one run; figures are medians. The first call of compress in a process also loads
code, which does not count.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import rsprune
from rsprune.models import build

BATCH, IMAGES = 128, 50_000
MOST = 0.02  # of an epoch


NETWORKS = ("resnet20", "vgg16")
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"target_macs": 0.5}, {"select": "thinet"}, {"mode": "zero-groups"},
)  # fmt: skip


def sparse(name: str) -> nn.Module:
    model = build(name)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(torch.rand_like(parameter) > 0.75)
    return model


def timed(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def epoch_seconds(model: nn.Module, steps: int) -> float:
    """The time of a training epoch, from ``steps`` steps."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    step()
    times = [timed(step) for _ in range(steps)]
    return statistics.median(times) * IMAGES / BATCH


def print_costs(rounds: int, steps: int) -> None:
    print("\n| network | options | compress, s | epoch, s | ratio | bar | |")
    print("|---|---|---|---|---|---|---|")
    images = torch.randn(BATCH, 3, 32, 32)
    for name in NETWORKS:
        model = sparse(name)
        works = [partial(rsprune.compress, model, images, **options) for options in OPTIONS]
        works[-1]()  # warm-up: lazy imports
        costs: list[list[float]] = [[] for _ in OPTIONS]
        epochs = []
        for _ in range(rounds):
            epochs.append(epoch_seconds(model, max(1, steps // rounds)))
            for own, work in zip(costs, works, strict=True):
                own.append(timed(work))
        epoch = statistics.median(epochs)
        for options, own in zip(OPTIONS, costs, strict=True):
            print_row(name, options, statistics.median(own), epoch)


def print_row(name: str, options: dict[str, Any], cost: float, epoch: float) -> None:
    text = ", ".join(f"{key}={value}" for key, value in options.items()) or "the rule"
    met = "MET" if cost <= MOST * epoch else "MISSED"
    cells = f"{cost:.2f} | {epoch:.0f} | {cost / epoch:.2%} | <= {MOST:.0%}"
    print(f"| {name} | {text} | {cells} | {met} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="timed calls of compress")
    parser.add_argument("--steps", type=int, default=6, help="training steps per network")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, one thread, {options.rounds} rounds")
    print_costs(options.rounds, options.steps)


if __name__ == "__main__":
    main()
