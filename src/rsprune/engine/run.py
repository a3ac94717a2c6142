"""A run: baseline, recursion and measurement, in a directory from which it can be resumed.

The directory holds ``recipe.toml`` (with every default written out), ``events.jsonl``,
``checkpoints/`` (of the training under way), ``state/`` (of the recursion), and in the end
``model.safetensors`` and ``history.json``.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

import rsprune
from rsprune.compression import unit_slots
from rsprune.data import Data
from rsprune.data import load as load_data
from rsprune.engine.evaluate import accuracy
from rsprune.engine.events import Event, EventLog
from rsprune.engine.machine import Machine
from rsprune.engine.network import prepare_network
from rsprune.engine.recipe import RATIO_ONLY, Recipe, Training, read_recipe
from rsprune.engine.train import Job, train
from rsprune.errors import DivergenceError, RunError, StorageError
from rsprune.files import write_atomic
from rsprune.metrics.latency import latency
from rsprune.recursion import PruneResult, recursive_prune

if sys.platform != "win32":
    import fcntl

BASELINE = "baseline"


class Watcher(Protocol):
    """Who watches a run."""

    def event(self, event: Event) -> None:
        """Something happened; it is in events.jsonl already."""

    def step(self, done: int, total: int, loss: float, accuracy: float) -> None:
        """So many steps of the present epoch are done, with these means so far."""

    @property
    def stopping(self) -> bool:
        """Whether the run is to save its state and stop."""


def begin(recipe: Recipe, directory: Path) -> None:
    """Make a run directory with its recipe."""
    if (directory / "recipe.toml").exists():
        raise RunError(
            f"'{directory}' holds a run already. Go on with it: rsprune compress --resume "
            f"{directory}. Or choose another directory with --out."
        )
    if directory.is_dir() and any(directory.iterdir()):
        raise RunError(f"'{directory}' is not empty. Choose another directory with --out.")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"The directory '{directory}' cannot be made: {error.strerror}. Choose another with "
            "--out."
        ) from error
    write_atomic(directory / "recipe.toml", _resolved(recipe).to_toml())


def _resolved(recipe: Recipe) -> Recipe:
    """The recipe with what depends on this machine, or on other keys, decided."""
    threads = recipe.threads or torch.get_num_threads()  # the bits of a sum depend on them
    baseline = recipe.baseline
    if recipe.weights is not None and "epochs" not in baseline.model_fields_set:
        baseline = baseline.model_copy(update={"epochs": 0})  # it is trained already
    return recipe.model_copy(update={"threads": threads, "baseline": baseline})


def recipe_of(directory: Path) -> Recipe:
    """The recipe of a run directory."""
    path = directory / "recipe.toml"
    if not path.is_file():
        raise RunError(f"'{directory}' is no run directory: it has no recipe.toml.")
    return read_recipe(path)


def execute(directory: Path, watcher: Watcher) -> Event:
    """Run what is left of the run in ``directory``; its last event, ``finish``."""
    with _alone(directory):
        return Run(directory, watcher).execute()


class Run:
    """A run under way.

    Args:
        directory: a run directory with its recipe.
        watcher: who is told.
    """

    def __init__(self, directory: Path, watcher: Watcher) -> None:
        self.directory, self.watcher = directory, watcher
        self.recipe = recipe_of(directory)
        self.machine = Machine(self.recipe)
        self.log = EventLog(directory / "events.jsonl")
        self.data: Data = load_data(
            self.recipe.data, seed=self.recipe.seed, **self.recipe.loading.model_dump()
        )
        self.model = prepare_network(self.recipe, self.data)
        self.round = 0
        self.rounds: list[Event] = []  # that the recursion has told of
        for name in ("checkpoints", "state"):
            (directory / name).mkdir(exist_ok=True)

    @property
    def stopping(self) -> bool:
        """Whether to save the state and stop."""
        return self.watcher.stopping

    def step(self, done: int, total: int, loss: float, accuracy: float) -> None:
        """Pass a step on to the watcher."""
        self.watcher.step(done, total, loss, accuracy)

    def event(self, event: Event) -> None:
        """Log an event, unless a resumed run has it already, and show it."""
        if event["event"] == "round":
            self.rounds.append(event)
        known = event.pop("resumed", False) and self.log.holds(event)
        if self.machine.main and not known:
            self.log.append(event)
            self.watcher.event(event)

    def _begin_stage(self, stage: str, number: int, epochs: int, lam: float | None = None) -> None:
        """Log and show that a stage begins or goes on; checkpoints of other stages go."""
        self.round = number
        event = {"event": "stage", "stage": stage, "round": number, "epochs": epochs, "lam": lam}
        if not self.machine.main:
            return
        if not self.log.holds(event):
            self.log.append(event)
        self.watcher.event({**event, "done": self.log.epochs_of(stage, number)})
        for old in (self.directory / "checkpoints").iterdir():
            if old.stem != f"{stage}-{number}":
                old.unlink()

    def execute(self) -> Event:
        """Run what is left; the last event, ``finish``."""
        start = time.monotonic()
        done = self.log.find("finish")
        if done is not None:
            return done
        if self.log.find("start") is None:
            self.event(self._start())
        self.baseline()
        result = self._recursion()
        rsprune.save(result.model, self.directory / "model.safetensors")
        history = {**asdict(result, dict_factory=_without_model), "model": self.recipe.model}
        write_atomic(self.directory / "history.json", json.dumps(history, indent=1) + "\n")
        finish = self._finish(result, time.monotonic() - start)
        self.event(finish)
        for old in (self.directory / "checkpoints").iterdir():
            old.unlink()
        return finish

    # -- stages -----------------------------------------------------------------------------

    def baseline(self) -> None:
        """Train the network as it is, unless the recipe brought trained weights."""
        kept = self.directory / "state" / f"{BASELINE}.safetensors"
        if kept.exists():
            self.model = rsprune.load(self.model, kept)
            self.machine.place(self.model)
            return
        if self.recipe.baseline.epochs:
            self._begin_stage(BASELINE, 0, self.recipe.baseline.epochs)
            try:
                self._train(self.model, BASELINE, self.recipe.baseline)
            except DivergenceError as error:
                raise RunError(f"There is no baseline to compress. {error}") from error
        self.machine.place(self.model)
        rsprune.save(self.model, kept)

    def _recursion(self) -> PruneResult:
        recipe = self.recipe
        return recursive_prune(
            self.model,
            self.example,
            explore=self.explore,
            evaluate=self.validate,
            finetune=self._finetune,
            lam=recipe.explore.lam,
            directory=self.directory / "state",
            on_event=self.event,
            **recipe.recursion.model_dump(),
            **self.cut_options,
        )

    def explore(self, model: nn.Module, lam: float, number: int | None = None) -> None:
        """Train a model sparse, in place, as the round of this number (else the present one)."""
        settings = self.recipe.explore
        number = len(self.rounds) if number is None else number
        self._begin_stage("explore", number, settings.epochs, lam)
        units = None
        if settings.optimizer == "hspg" and self.recipe.compress.mode == "zero-groups":
            units = unit_slots(model, rsprune.trace(model, self.example))
        self._train(model, "explore", settings, lam=lam, units=units)

    def _finetune(self, model: nn.Module) -> None:
        settings = self.recipe.finetune
        size = sum(p.numel() for p in model.parameters())
        made = [one["round"] for one in self.rounds if (one["after"] or {}).get("params") == size]
        self._begin_stage("finetune", made[-1], settings.epochs)
        teacher = self.model.eval() if settings.distill else None
        self._train(model, "finetune", settings, teacher=teacher)

    def _train(self, model: nn.Module, stage: str, settings: Training, **more: Any) -> None:
        name = f"{stage}-{self.round}.safetensors"
        job = Job(
            stage, self.round, settings, self.recipe.seed, self.directory / "checkpoints" / name,
            self.recipe.checkpoint_minutes, **more,
        )  # fmt: skip
        train(model, self.data, job, self.machine, self)

    def validate(self, model: nn.Module) -> float:
        """The accuracy that decides."""
        return accuracy(self.machine.place(model), self.data.validation, self.machine)

    @property
    def example(self) -> torch.Tensor:
        """One input, of zeros."""
        return torch.zeros(1, *self.data.input_shape, device=self.machine.device)

    @property
    def cut_options(self) -> dict[str, Any]:
        """The keyword arguments of :func:`rsprune.compress`."""
        options = self.recipe.compress.model_dump()
        if options["mode"] == "zero-groups":
            options = {key: value for key, value in options.items() if key not in RATIO_ONLY}
        if options["select"] == "thinet":
            options["batches"] = self._batches
        return options

    @property
    def _batches(self) -> list[torch.Tensor]:
        """A few real batches, always the same."""
        batches = self.data.train.epoch(
            _SAMPLE, seed=self.recipe.seed, epoch=0, device=self.machine.device
        )
        return [images for (images, _), _ in zip(batches, range(_SAMPLES), strict=False)]

    # -- what is told -----------------------------------------------------------------------

    def _start(self) -> Event:
        return {
            "event": "start",
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "version": rsprune.__version__,
            "model": self.recipe.model,
            "data": self.recipe.data,
            "classes": self.data.classes,
            "input_shape": list(self.data.input_shape),
            "sizes": self.data.sizes,
            "recipe": self.recipe.model_dump(mode="json"),
            "environment": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "platform": platform.platform(),
                "cpu": platform.processor() or platform.machine(),
                "threads": torch.get_num_threads(),
                "device": str(self.machine.device),
            },
        }

    def _finish(self, result: PruneResult, seconds: float) -> Event:
        models = {"before": self.model, "after": result.model}
        times = latency(models, self.example)
        sides = {
            name: {
                **asdict(size),
                "validation_accuracy": validation,
                "test_accuracy": accuracy(model, self.data.test, self.machine),
                "latency": times[name].median,
            }
            for (name, model), size, validation in zip(
                models.items(),
                (result.before, result.after),
                (result.baseline, result.accuracy),
                strict=True,
            )
        }
        return {
            "event": "finish",
            "stopped": result.stopped,
            "seconds": seconds,
            **sides,
            "layers": self._layers(result.model),
        }

    def _layers(self, slim: nn.Module) -> list[dict[str, Any]]:
        """The weights of every layer that multiplies, before and after."""
        pair = (self.model, slim)
        costs = [{x.name: x for x in rsprune.profile(m, self.example).layers} for m in pair]
        rows = []
        for name in costs[0]:
            weights = [getattr(m.get_submodule(name), "weight", None) for m in pair]
            if any(
                weight is None or name not in cost
                for weight, cost in zip(weights, costs, strict=True)
            ):
                continue
            sides = [
                {"shape": list(weight.shape), "macs": cost[name].macs}
                for weight, cost in zip(weights, costs, strict=True)
                if weight is not None
            ]
            rows.append({"name": name, "before": sides[0], "after": sides[1]})
        return rows


_SAMPLE, _SAMPLES = 64, 8  # images in a batch, and batches, for ThiNet's choice


def _without_model(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in items if name != "model"}


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Keep other processes from running in the same directory."""
    rank = int(os.environ.get("RANK", "0"))
    try:
        lock = open(directory / f".lock-{rank}", "w")  # noqa: SIM115
    except OSError as error:
        raise StorageError(
            f"The run directory '{directory}' cannot be written to: {error.strerror}."
        ) from error
    with lock:
        if sys.platform != "win32":
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"Another process is running in '{directory}'.") from None
        yield
