"""One of several processes that train a network together, and what it ends with.

    torchrun --nproc_per_node 2 -m tests.integration.agreeing DIRECTORY

Leaves plain-RANK.safetensors, averaged-RANK.safetensors of a training with averaged weights, and
pieces-RANK.safetensors of one that was stopped and went on; what they told is in events-RANK.json.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import torch

import rsprune
from rsprune.data import load
from rsprune.engine.directory import rank
from rsprune.engine.events import Event
from rsprune.engine.machine import Machine
from rsprune.engine.recipe import Dense, Recipe
from rsprune.engine.train import Job, train
from rsprune.models import SmallCNN
from tests.integration.killing import Quiet


class Listening(Quiet):
    """Keeps what it is told, and may ask to stop."""

    def __init__(self, stopping: bool) -> None:
        self.stopping = stopping
        self.told: list[Event] = []

    def event(self, event: Event) -> None:
        self.told.append(event)


def main() -> None:
    directory = Path(sys.argv[1])
    machine, data = Machine(Recipe(device="cpu", threads=1)), load("digits")
    told = {}
    for name, ema, stops in (
        ("plain", 0.0, [False]), ("averaged", 0.5, [False]), ("pieces", 0.0, [True, False]),
    ):  # fmt: skip
        settings = Dense(epochs=1, batch_size=16, ema=ema)
        file = directory / f"{name}.checkpoint"
        for stop in stops:
            torch.manual_seed(0)
            watch, model = Listening(stop), SmallCNN(width=4)
            with suppress(KeyboardInterrupt):
                train(model, data, Job("baseline", 0, settings, 0, file, 1e9), machine, watch)
        told[name] = watch.told
        rsprune.save(model, directory / f"{name}-{rank()}.safetensors")
    (directory / f"events-{rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
