"""What a sparse epoch costs, beside an epoch of plain SGD.

    python benchmarks/epoch.py [--rounds 5] [--images 1280]

Both are stages of the engine: augmented batches of CIFAR-10's size (random images), forward,
backward and update. They take turns in one run; figures are medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from rsprune.data import Data
from rsprune.data.images import Labelled, Raw
from rsprune.data.memory import in_memory
from rsprune.engine.machine import Machine
from rsprune.engine.recipe import Dense, Explore, Recipe, Training
from rsprune.engine.train import Job, train
from rsprune.models import build

MOST = 1.1
NETWORKS = ("resnet20", "vgg16")
STAGES: dict[str, Training] = {
    "SGD": Dense(epochs=1, batch_size=128),
    "Prox-SG": Explore(epochs=1, batch_size=128, optimizer="prox-sg"),
    "OBProx-SG": Explore(epochs=1, batch_size=128),  # half prox, half orthant
    "HSPG": Explore(epochs=1, batch_size=128, optimizer="hspg"),
}


def noise(count: int) -> Labelled:
    """Images of noise, with labels."""
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8), torch.arange(count) % 10


class Stopwatch:
    """Notes the seconds of an epoch."""

    stopping = False
    seconds = 0.0

    def event(self, event: dict[str, Any]) -> None:
        self.seconds = event["seconds"]

    def step(self, done: int, total: int, loss: float, accuracy: float) -> None:
        pass


def epoch_seconds(name: str, settings: Training, data: Data, machine: Machine) -> float:
    torch.manual_seed(0)
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one epoch is too short for the penalty
        job = Job("explore", 0, settings, 0, Path(directory) / "checkpoint", 60, lam=1e-4)
        train(build(name), data, job, machine, watch)
    return watch.seconds


def print_costs(rounds: int, images: int) -> None:
    machine = Machine(Recipe(device="cpu"))
    raw = Raw(noise(images), noise(100), 10, "noise")
    data = in_memory("noise", raw, validation=0.1, seed=0, augment="crop-flip", normalise="auto")
    print(f"\n| network | {' | '.join(STAGES)} | bar | |")
    print(f"|---|{'---|' * len(STAGES)}---|---|")
    for name in NETWORKS:
        times: dict[str, list[float]] = {stage: [] for stage in STAGES}
        for _ in range(rounds):
            for stage, settings in STAGES.items():
                times[stage].append(epoch_seconds(name, settings, data, machine))
        medians = {stage: statistics.median(found) for stage, found in times.items()}
        ratios = {stage: seconds / medians["SGD"] for stage, seconds in medians.items()}
        verdict = "met" if max(ratios.values()) <= MOST else "MISSED"
        cells = " | ".join(f"{ratio:.2f}" for ratio in ratios.values())
        print(f"| {name} | {cells} | {MOST} | {verdict} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=1280, help="in an epoch (1280)")
    options = parser.parse_args()
    print(f"Sparse epochs as ratios to SGD's; {torch.get_num_threads()} threads.")
    print_costs(options.rounds, options.images)


if __name__ == "__main__":
    main()
