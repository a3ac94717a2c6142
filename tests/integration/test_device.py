"""A run computes where its recipe says, from its first step to its last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rsprune.cli.evaluate import measure
from rsprune.engine.directory import begin, recipe_of
from rsprune.engine.machine import Machine
from rsprune.engine.recipe import read_recipe
from rsprune.engine.run import execute
from tests import elsewhere

OPTIONS = {
    "model_options.width": "4", "threads": "1", "channels_last": "true", "recursion.tolerance": "1",
    "baseline.epochs": "1", "explore.epochs": "1", "finetune.epochs": "3",
    "baseline.batch_size": "256", "explore.batch_size": "32", "finetune.batch_size": "256",
    "compress.target_macs": "0.5", "compress.select": "thinet", "explore.clip": "1.0",
    "finetune.distill": "0.5", "finetune.ema": "0.9", "finetune.views": "1",
}  # fmt: skip


class Watch:
    """Stops a run at its first look at the loss of a stage."""

    def __init__(self, stop: str | None) -> None:
        self.stop, self.stage, self.stopping = stop, "", False

    def event(self, event: dict[str, Any]) -> None:
        self.stage = event.get("stage", self.stage)

    def step(self, *_: float) -> None:
        self.stopping = self.stage == self.stop


@pytest.fixture(autouse=True)
def on_another_device(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Machine, "device", property(lambda _: elsewhere.DEVICE))
    with elsewhere.device(monkeypatch):
        yield


def test_the_stand_in_refuses_what_a_gpu_refuses() -> None:
    there = torch.ones(2, device=elsewhere.DEVICE)
    assert (there + there).device == elsewhere.DEVICE
    with pytest.raises(AssertionError, match="and on the CPU"):
        there + torch.ones(2)


@pytest.mark.filterwarnings("ignore:lambda = :rsprune.RsPruneWarning")
def test_a_run_on_another_device_is_stopped_resumed_finished_and_measured(tmp_path: Path) -> None:
    """Nothing in it, from the rehearsal to the latency, mixes devices."""
    begin(read_recipe(None, OPTIONS), tmp_path / "run")
    written = []
    for stop in ("explore", "finetune", "finetune"):
        with pytest.raises(KeyboardInterrupt):
            execute(tmp_path / "run", Watch(stop))
        kept = (tmp_path / "run" / "checkpoints").glob("*.view-0.safetensors")
        written += [file.stat().st_mtime_ns for file in kept]
    assert written == [written[0]] * 2, "a resumed run has the teacher's scores"
    finish = execute(tmp_path / "run", Watch(None))
    assert finish["after"]["macs"] <= 0.5 * finish["before"]["macs"]
    found = measure(recipe_of(tmp_path / "run"), tmp_path / "run" / "model.safetensors")
    assert found["test_accuracy"] == finish["after"]["test_accuracy"]
