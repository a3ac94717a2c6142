"""Runs a recipe in child processes that are killed again and again, until one of them finishes.

    python -m tests.integration.killing DIRECTORY SEED

Prints, as JSON, in which stage each kill struck. The parent imports everything once and forks, so
that a child begins at once; kill -9 ends it as it ends any process.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import rsprune
from rsprune.data import load
from rsprune.engine.directory import begin
from rsprune.engine.recipe import read_recipe
from rsprune.engine.run import execute
from rsprune.models import SmallCNN
from tests.commands import events

OPTIONS = {
    "threads": "1", "model_options.width": "8", "checkpoint_minutes": "0.002",
    "recursion.rounds": "2", "recursion.tolerance": "1", "explore.lam": "0.01",
    "explore.batch_size": "128", "baseline.epochs": "2", "explore.epochs": "3",
    "finetune.epochs": "2", "finetune.distill": "0.5", "finetune.views": "1",
}  # fmt: skip


class Quiet:
    """Watches nothing."""

    stopping = False

    def event(self, event: object) -> None:
        pass

    def step(self, done: int, total: int, loss: float, accuracy: float) -> None:
        pass


def start(directory: Path) -> int:
    """Fork a child that runs what is left; its process."""
    child = os.fork()
    if child == 0:
        try:
            execute(directory, Quiet())
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def kill_after(directory: Path, child: int, more: int, delay: float) -> str | None:
    """Kill the child some time after it told of ``more`` events; where, or None if it finished."""
    wanted = len(events(directory)) + more
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if len(events(directory)) >= wanted:
            time.sleep(delay)
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            return place(directory) if os.WIFSIGNALED(status) else None
        time.sleep(0.002)
    return None


def place(directory: Path) -> str:
    """The stage that a killed run was in."""
    last = events(directory)[-1] if events(directory) else {"event": "nothing"}
    if last["event"] == "epoch" and last["stage"] == "explore" and last["epoch"] == last["epochs"]:
        return "compress"
    return str(last.get("stage", last["event"]))


def main() -> None:
    directory, chance = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
    torch.set_num_threads(1)
    load("digits")  # and whatever is imported on first use
    rsprune.compress(SmallCNN(width=4), torch.zeros(1, 1, 8, 8), target_macs=1.0)
    begin(read_recipe(None, OPTIONS), directory)
    struck: list[str] = []
    while True:
        child = start(directory)
        where = kill_after(directory, child, chance.randrange(3), chance.uniform(0, 0.1))
        if where is None:
            break
        struck.append(where)
    done = [event for event in events(directory) if event["event"] == "finish"]
    print(json.dumps({"struck": struck, "finished": len(done) == 1}))


if __name__ == "__main__":
    main()
