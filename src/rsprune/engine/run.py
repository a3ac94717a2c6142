"""A run: baseline, recursion and measurement, in a directory from which it can be resumed.

The directory holds ``recipe.toml`` (with every default written out), ``events.jsonl``,
``checkpoints/`` (of the training under way), ``state/`` (of the recursion), and in the end
``model.safetensors`` and ``history.json``.
"""

from __future__ import annotations

import shutil
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rsprune
from rsprune.compression import unit_slots
from rsprune.data import Data
from rsprune.data import load as load_data
from rsprune.engine.directory import alone, is_published, recipe_of, state_directory
from rsprune.engine.evaluate import accuracy
from rsprune.engine.events import Event, EventLog
from rsprune.engine.machine import Machine
from rsprune.engine.network import build_network, check_small_images, load_weights
from rsprune.engine.outcome import finish_event, history_json, start_event
from rsprune.engine.recipe import RATIO_ONLY, Training
from rsprune.engine.train import Job, Watch, train
from rsprune.errors import DivergenceError, RunError
from rsprune.files import write_atomic
from rsprune.recursion import PruneResult, recursive_prune
from rsprune.recursion.settings import Settings
from rsprune.recursion.stages import check_times
from rsprune.runtimes.onnx import require_onnx

BASELINE = "baseline"
_SAMPLE, _SAMPLES = 64, 8  # images in a batch, and batches, for ThiNet's choice


def execute(directory: Path, watcher: Watch) -> Event:
    """Run what is left of the run in ``directory``; its last event, ``finish``."""
    _refuse_published(directory)
    with alone(directory):
        return Run(directory, watcher).execute()


def _refuse_published(directory: Path) -> None:
    if is_published(directory):
        raise RunError(
            f"'{directory}' is a finished run without its state, as it is published: there is "
            f"nothing left to run. Measure it with: rsprune evaluate {directory}. Or run it again: "
            f"rsprune compress {directory / 'recipe.toml'} --out DIR"
        )


class Run:
    """A run under way.

    Args:
        directory: a run directory with its recipe.
        watcher: who is told.
    """

    def __init__(self, directory: Path, watcher: Watch) -> None:
        self.directory, self.watcher = directory, watcher
        self.recipe = recipe_of(directory)
        self.machine = Machine(self.recipe)
        self.log = EventLog(directory / "events.jsonl")
        self.data: Data = load_data(
            self.recipe.data, seed=self.recipe.seed, **self.recipe.loading.model_dump()
        )
        self.model = build_network(self.recipe, self.data.classes, self.data.input_shape)
        self.rounds: list[Event] = []  # that the recursion has told of
        (directory / "checkpoints").mkdir(exist_ok=True)
        self.machine.wait()
        self.state = state_directory(directory)
        self.machine.wait()
        self.trained = self.state / f"{BASELINE}.safetensors"
        if not self.trained.exists():
            check_small_images(self.recipe, self.model, self.data.classes, self.data.input_shape)
            self._rehearse()

    @property
    def stopping(self) -> bool:
        """Whether to save the state and stop."""
        return self.watcher.stopping

    def step(self, done: int, total: int, loss: float, accuracy: float) -> None:
        """Pass a step on to the watcher."""
        if self.machine.main:
            self.watcher.step(done, total, loss, accuracy)

    def event(self, event: Event) -> None:
        """Log an event, unless a resumed run has it already, and show it."""
        if event["event"] == "round":
            self.rounds.append(event)
        known = event.pop("resumed", False) and self.log.holds(event)
        if self.machine.main and not known:
            self.log.append(event)
            self.watcher.event(event)

    def execute(self) -> Event:
        """Run what is left; the last event, ``finish``."""
        done = self.log.find("finish")
        if done is not None:
            return done
        self.begin()
        return self.finish(self._recursion())

    def begin(self) -> None:
        """Log what the run is about, and make or find its baseline."""
        if self.log.find("start") is None:
            self.event(start_event(self.recipe, self.data, self.machine))
        self.baseline()

    def finish(self, result: PruneResult) -> Event:
        """Keep and measure the result; the last event."""
        finish = finish_event(self.model, result, self.data, self.machine, self.log.seconds)
        if self.machine.main:
            rsprune.save(result.model, self.directory / "model.safetensors")
            write_atomic(self.directory / "history.json", history_json(result))
            self.event(finish)
            self._clear_checkpoints()
        else:
            shutil.rmtree(self.state)
        return finish

    def _clear_checkpoints(self, but: str | None = None) -> None:
        """Delete the checkpoints of all stages but one, and what belongs to them."""
        for old in (self.directory / "checkpoints").iterdir():
            if old.name.partition(".")[0] != but:
                old.unlink()

    # -- stages -----------------------------------------------------------------------------

    def baseline(self) -> None:
        """Train the network as it is, unless the recipe brought trained weights."""
        if self.trained.exists():
            self.model = rsprune.load(self.model, self.trained)
            self.machine.place(self.model)
            return
        if self.recipe.baseline.epochs:
            try:
                self.train(self.model, BASELINE, self.recipe.baseline)
            except DivergenceError as error:
                raise RunError(f"There is no baseline to compress: {error}.") from error
        self.machine.place(self.model)
        rsprune.save(self.model, self.trained)

    def _rehearse(self) -> None:
        """Load the weights and cut once, so that mistakes show before any training."""
        if self.recipe.weights is not None:
            load_weights(self.model, Path(self.recipe.weights))
        options = {**self.cut_options, "select": "magnitude"}
        options.pop("batches", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the real cut repeats what matters
            if options.get("target_latency") is not None or options.get("round_to") == "auto":
                self._check_measuring()
                options |= {"target_latency": None, "round_to": 1, "spread": "even"}
            rsprune.compress(self.machine.place(self.model), self.example, **options)

    def _check_measuring(self) -> None:
        """Refuse to measure where it cannot be done."""
        if self.machine.shard[1] > 1:
            raise RunError(
                "compress.target_latency and compress.round_to = 'auto' measure times, of which "
                "several processes would draw different conclusions. Run one process, or use "
                "compress.target_macs and a number for compress.round_to."
            )
        recipe = self.recipe
        if recipe.compress.runtime == "onnxruntime":
            require_onnx()
        cut = recipe.compress.model_dump()
        targets = {name: cut.pop(name) for name in list(cut) if name.startswith("target_")}
        rules = {**recipe.recursion.model_dump(), **targets}
        settings = Settings(lam=recipe.explore.lam, **rules, cut=cut)
        check_times(self.machine.place(self.model), self.example, settings)

    def _recursion(self) -> PruneResult:
        recipe = self.recipe
        return recursive_prune(
            self.model,
            self.example,
            explore=self.explore,
            evaluate=self.validate,
            finetune=self._finetune,
            lam=recipe.explore.lam,
            directory=self.state,
            on_event=self.event,
            **recipe.recursion.model_dump(),
            **self.cut_options,
        )

    def explore(self, model: nn.Module, lam: float, number: int | None = None) -> None:
        """Train a model sparse, in place, as the round of this number (else the present one)."""
        settings = self.recipe.explore
        number = len(self.rounds) if number is None else number
        units = None
        if settings.optimizer == "hspg" and self.recipe.compress.mode == "zero-groups":
            units = unit_slots(model, rsprune.trace(model, self.example))
        self.train(model, "explore", settings, number, lam=lam, units=units)

    def _finetune(self, model: nn.Module) -> None:
        settings = self.recipe.finetune
        size = sum(p.numel() for p in model.parameters())
        made = [one["round"] for one in self.rounds if (one["after"] or {}).get("params") == size]
        teacher = self.model.eval() if settings.distill else None
        self.train(model, "finetune", settings, made[-1], teacher=teacher)

    def train(
        self, model: nn.Module, stage: str, settings: Training, number: int = 0, **more: Any
    ) -> None:
        """Train a model in place, from its last checkpoint; checkpoints of other stages go.

        Args:
            model: what is trained.
            stage: baseline, explore or finetune.
            settings: the stage's table of the recipe.
            number: of the round.
            **more: further fields of the :class:`Job`.
        """
        self._begin_stage(stage, number, settings.epochs, more.get("lam"))
        file = self.directory / "checkpoints" / f"{stage}-{number}.safetensors"
        minutes = self.recipe.checkpoint_minutes
        job = Job(stage, number, settings, self.recipe.seed, file, minutes, **more)
        train(model, self.data, job, self.machine, self)

    def _begin_stage(self, stage: str, number: int, epochs: int, lam: float | None) -> None:
        event = {"event": "stage", "stage": stage, "round": number, "epochs": epochs, "lam": lam}
        if not self.machine.main:
            return
        if not self.log.holds(event):
            self.log.append(event)
        done = self.log.epochs_of(stage, number)
        compiles = self.recipe.compile and done < epochs
        self.watcher.event({**event, "done": done, "compiles": compiles})
        self._clear_checkpoints(but=f"{stage}-{number}")

    def validate(self, model: nn.Module) -> float:
        """The accuracy that decides."""
        return accuracy(self.machine.place(model), self.data.validation, self.machine)

    @cached_property
    def example(self) -> torch.Tensor:
        """One real input."""
        images, _ = next(iter(self.data.train.in_order(1, device=self.machine.device)))
        return images

    @property
    def cut_options(self) -> dict[str, Any]:
        """The keyword arguments of :func:`rsprune.compress`."""
        options = self.recipe.compress.model_dump()
        if options["mode"] == "zero-groups":
            options = {key: value for key, value in options.items() if key not in RATIO_ONLY}
        if options.get("select") == "thinet":
            options["batches"] = self._batches
        return options

    @property
    def _batches(self) -> list[torch.Tensor]:
        """A few real batches, always the same."""
        batches = self.data.train.epoch(
            _SAMPLE, seed=self.recipe.seed, epoch=0, device=self.machine.device
        )
        return [images for (images, _), _ in zip(batches, range(_SAMPLES), strict=False)]
