"""A training step with freed memory kept, beside one with glibc's usual ways.

    python benchmarks/memory.py [--rounds 3] [--steps 6] [--networks resnet20 vgg16]

Forward, backward and update of a batch of 128 random images of CIFAR-10's size, channels last, in
float32 and in bfloat16. What glibc does is settled for a process, so every figure is one process's
median step; the processes take turns, and the table has the medians of theirs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import torch
from torch.nn import functional as F

from rsprune.engine.memory import keep_freed_memory
from rsprune.models import build

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def step_seconds(name: str, precision: str, steps: int) -> float:
    """The median of some training steps, after two to warm up."""
    model = build(name).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(128, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.arange(128) % 10
    dtype = PRECISIONS[precision]
    times = []
    for _ in range(2 + steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not torch.float32):
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    return statistics.median(times[2:])


def in_process(name: str, precision: str, steps: int, keep: bool) -> float:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--networks", name, "--steps", str(steps)]
    command += ["--one", precision, *(["--keep"] if keep else [])]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="processes a figure (3)")
    add("--steps", type=int, default=6, help="that a process measures (6)")
    add("--networks", nargs="+", default=["resnet20", "vgg16"])
    add("--one", choices=PRECISIONS, help=argparse.SUPPRESS)  # what a process is started with
    add("--keep", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        if options.keep:
            keep_freed_memory()
        print(step_seconds(options.networks[0], options.one, options.steps))
        return
    print(f"{torch.get_num_threads()} threads.\n")
    print("| network | precision | usual, ms | freed memory kept, ms | times faster |")
    print("|---|---|---|---|---|")
    for name in options.networks:
        for precision in PRECISIONS:
            pairs = [
                [in_process(name, precision, options.steps, keep) for keep in (False, True)]
                for _ in range(options.rounds)
            ]
            usual, kept = (statistics.median(times) for times in zip(*pairs, strict=True))
            row = f"| {name} | {precision} | {1e3 * usual:.0f} | {1e3 * kept:.0f} |"
            print(f"{row} {usual / kept:.2f} |", flush=True)


if __name__ == "__main__":
    main()
