"""One of several processes that train a network together, and what it ends with.

    torchrun --nproc_per_node 2 -m tests.integration.agreeing DIRECTORY

Leaves plain-RANK.safetensors, and averaged-RANK.safetensors of a training with averaged weights.
"""

from __future__ import annotations

import sys
from pathlib import Path

import rsprune
from rsprune.data import load
from rsprune.engine.directory import rank
from rsprune.engine.machine import Machine
from rsprune.engine.recipe import Dense, Recipe
from rsprune.engine.train import Job, train
from rsprune.models import SmallCNN
from tests.integration.killing import Quiet


def main() -> None:
    directory = Path(sys.argv[1])
    machine, data = Machine(Recipe(device="cpu", threads=1)), load("digits")
    for name, ema in (("plain", 0.0), ("averaged", 0.5)):
        settings = Dense(epochs=1, batch_size=128, ema=ema)
        job = Job(name, 0, settings, 0, directory / f"{name}.checkpoint", minutes=1e9)
        model = SmallCNN(width=4)
        train(model, data, job, machine, Quiet())
        rsprune.save(model, directory / f"{name}-{rank()}.safetensors")


if __name__ == "__main__":
    main()
