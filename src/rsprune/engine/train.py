"""One stage of training, which can be interrupted at any point and goes on with the same bits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rsprune.data import Batch, Data
from rsprune.engine.checkpoint import Checkpoint, Position
from rsprune.engine.evaluate import accuracy
from rsprune.engine.events import Event
from rsprune.engine.growing import grown
from rsprune.engine.machine import Machine
from rsprune.engine.optimizers import Units, sgd, sparse
from rsprune.engine.recipe import Dense, Explore, Finetune, Training
from rsprune.engine.schedules import learning_rate
from rsprune.engine.teacher import Teacher
from rsprune.errors import DivergenceError
from rsprune.optim import ProxSVRG
from rsprune.optim.diagnostics import sparsity

_LOOK_EVERY = 25  # steps; a look at the loss makes a GPU wait


class Watch(Protocol):
    """Who is told how a training goes."""

    def event(self, event: Event) -> None:
        """An epoch is finished."""

    def step(self, done: int, total: int, loss: float, accuracy: float) -> None:
        """So many steps of the present epoch are done, with these means so far."""

    @property
    def stopping(self) -> bool:
        """Whether the training is to save its state and stop."""


@dataclass(frozen=True)
class Job:
    """A stage of training.

    Attributes:
        stage: baseline, explore or finetune.
        round: of the recursion.
        settings: the stage's table of the recipe.
        seed: of the run.
        lam: the penalty of an exploring stage.
        units: the slots of the units that HSPG may set to zero.
        teacher: the network whose scores a fine-tuning stage imitates.
        checkpoint: the file that keeps the state.
        minutes: between two checkpoints within an epoch.
    """

    stage: str
    round: int
    settings: Training
    seed: int
    checkpoint: Path
    minutes: float
    lam: float | None = None
    units: Units | None = None
    teacher: nn.Module | None = None

    @property
    def name(self) -> str:
        """The stage in a word."""
        return f"{self.stage}-{self.round}"

    @property
    def own_seed(self) -> int:
        """A seed of its own, so that a stage does not depend on those before it."""
        return (self.seed + crc32(self.name.encode())) % 2**31


def train(model: nn.Module, data: Data, job: Job, machine: Machine, watch: Watch) -> None:
    """Train ``model`` in place, from its last checkpoint if there is one."""
    torch.manual_seed(job.own_seed)
    machine.place(model)
    stage = _Stage(model, data, job, machine, watch)
    try:
        stage.run()
    finally:
        machine.release(model)


class _Stage:
    """A training under way."""

    def __init__(
        self, model: nn.Module, data: Data, job: Job, machine: Machine, watch: Watch
    ) -> None:
        self.model, self.data, self.job, self.machine, self.watch = model, data, job, machine, watch
        self.steps = data.train.steps(job.settings.batch_size)
        self.forward = machine.forward(model)
        self.teacher = self._make_teacher()
        self.optimizer = self._make_optimizer()
        self.stepper = machine.prepare(self.optimizer)
        self.average = _average(model, job.settings)
        modules = {"model": model} | ({"average": self.average} if self.average else {})
        self.checkpoint = Checkpoint(job.checkpoint, job.name, modules, self.optimizer)
        self.position = Position()
        self.phase: str | None = None  # of the last step
        self.sums = torch.zeros(3, device=machine.device)  # loss, right, seen
        self.began = self.saved_at = time.monotonic()  # the present epoch, and the last saving

    def _make_optimizer(self) -> torch.optim.Optimizer:
        settings = self.job.settings
        if isinstance(settings, Explore):
            lam = settings.lam if self.job.lam is None else self.job.lam
            return sparse(self.model, settings, lam, self.steps, self.job.units)
        return sgd(self.model, settings)

    def _make_teacher(self) -> Teacher | None:
        settings, network = self.job.settings, self.job.teacher
        if not isinstance(settings, Finetune) or not settings.distill or network is None:
            return None
        process, processes = self.machine.shard
        scores = self.job.checkpoint.with_suffix(f".scores-{process}-of-{processes}")
        return Teacher(self.machine.compiled(network), settings, scores)

    def run(self) -> None:
        self.position = self.checkpoint.load() or Position()
        while self.position.epoch < self.job.settings.epochs:
            self.began = time.monotonic() - self.position.seconds
            self._epoch()
            self._finish_epoch(time.monotonic() - self.began)
            if any(self._agreed(self.watch.stopping)):
                raise KeyboardInterrupt
        if self.average is not None:
            self.model.load_state_dict(self.average.module.state_dict())
        self.model.zero_grad(set_to_none=True)

    # -- an epoch ---------------------------------------------------------------------------

    def _epoch(self) -> None:
        at, job = self.position, self.job
        sums = [at.loss, at.right, at.seen] if self.machine.main else [0.0] * 3  # those of all
        self.sums = torch.tensor(sums, device=self.machine.device)
        self.model.train()
        if isinstance(self.optimizer, ProxSVRG) and at.step == 0:
            self.optimizer.snapshot(self._full_gradient)
        epoch = at.epoch if self.teacher is None else self.teacher.view(at.epoch)
        batches = self.data.train.epoch(
            job.settings.batch_size, seed=job.own_seed, epoch=epoch, start=at.step,
            shard=self.machine.shard, device=self.machine.device,
        )  # fmt: skip
        for batch in batches:
            self._step(batch)
            at.step += 1
            if at.step % _LOOK_EVERY == 0 or at.step == self.steps:
                self._look()
            if at.step < self.steps:
                self._pause()

    def _pause(self) -> None:
        """Between two steps: keep the state if it is time to, and stop if that is asked for."""
        if self.machine.shard[1] > 1 and self.position.step % _LOOK_EVERY:
            return  # to agree takes processes as long as a step
        due = time.monotonic() - self.saved_at > 60 * self.job.minutes
        save, stop = self._agreed(due, self.watch.stopping)
        if save or stop:
            self._save()
        if stop:
            self._save_scores(self.position.epoch)
            raise KeyboardInterrupt

    def _agreed(self, *wishes: bool) -> list[bool]:
        """Each wish, where any of the processes has it."""
        if self.machine.shard[1] == 1:
            return list(wishes)
        counts = torch.tensor(wishes, dtype=torch.int, device=self.machine.device)
        return [count > 0 for count in self.machine.total(counts).tolist()]

    def _step(self, batch: Batch) -> None:
        rate = learning_rate(self.job.settings, *self._progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.phase = getattr(self.optimizer, "phase", None)
        if isinstance(self.optimizer, ProxSVRG):
            self._step_twice(self.optimizer, batch)
        else:
            self._count(*self._gradient(batch))
            self.stepper.step()
        if self.average is not None:
            self.average.update_parameters(self.model)

    @property
    def _progress(self) -> tuple[int, int]:
        """The steps that are done, and all."""
        done = self.position.epoch * self.steps + self.position.step
        return done, self.job.settings.epochs * self.steps

    def _step_twice(self, optimizer: ProxSVRG, batch: Batch) -> None:
        """A step that needs the gradients at two points; the first is where the network is."""
        found: list[tuple[Tensor, Tensor]] = []

        def closure() -> float:
            found.append(self._gradient(batch))
            return found[-1][0].item()

        optimizer.step(closure)
        self._count(*found[0])

    def _gradient(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Leave the gradient in ``.grad``; the mean loss, and which images came out right."""
        images, labels = batch
        images = images.contiguous(memory_format=self.machine.memory_format)
        self.stepper.zero_grad()
        with self.machine.fast():
            scores = self.forward(self._grown(images))
            # Losses of half precision have gradients whose errors add up.
            loss = self._loss(scores.float(), (images, labels))
        self.machine.backward(loss)
        if self.job.settings.clip:
            self.machine.clip(self.model, self.job.settings.clip)
        return loss.detach(), scores.detach().argmax(1) == labels

    def _grown(self, images: Tensor) -> Tensor:
        """The images at the size of this step; a teacher sees them as they are."""
        settings = self.job.settings
        if not isinstance(settings, Dense):
            return images
        done, steps = self._progress
        return grown(images, settings.small, done / steps)

    def _count(self, loss: Tensor, right: Tensor) -> None:
        hits = right.sum()
        count = torch.full_like(hits, len(right))  # a copy would make a GPU wait
        self.sums += torch.stack([loss.float() * count, hits, count])

    def _loss(self, scores: Tensor, batch: Batch) -> Tensor:
        smoothing = self.job.settings.label_smoothing
        loss = F.cross_entropy(scores, batch[1], label_smoothing=smoothing)
        if self.teacher is None:
            return loss
        at = self.position
        return self.teacher.guide(loss, scores, batch, (at.epoch, at.step))

    def _full_gradient(self) -> None:
        """Leave the gradient of the mean loss of all training data in ``.grad``, for SVRG."""
        self.model.zero_grad()
        size = self.job.settings.batch_size
        for images, labels in self.data.train.in_order(size, device=self.machine.device):
            loss = F.cross_entropy(self.forward(images), labels, reduction="sum")
            self.machine.backward(loss / len(self.data.train))

    # -- what the run hears of it -----------------------------------------------------------

    def _look(self) -> None:
        loss, right, seen = self.machine.total(self.sums).tolist()  # all diverge, or none does
        if not abs(loss) < float("inf"):  # NaN too
            job = self.job
            raise DivergenceError(
                f"the loss of {job.stage} became {loss} in epoch {self.position.epoch + 1}; lower "
                f"{job.stage}.lr (now {job.settings.lr:g}) or set {job.stage}.clip, e.g. to 1.0"
            )
        self.watch.step(self.position.step, self.steps, loss / seen, right / seen)

    def _finish_epoch(self, seconds: float) -> None:
        loss, right, seen = self.machine.total(self.sums).tolist()
        for module in self.checkpoint.modules.values():
            self.machine.agree(module)
        best = self.average.module if self.average is not None else self.model
        zeros = sparsity(self.model)
        self.position = Position(epoch=self.position.epoch + 1)
        event = {
            "event": "epoch",
            "stage": self.job.stage,
            "round": self.job.round,
            "epoch": self.position.epoch,
            "epochs": self.job.settings.epochs,
            "loss": loss / seen,
            "accuracy": right / seen,
            "validation_accuracy": accuracy(best, self.data.validation, self.machine),
            "lr": self.optimizer.param_groups[0]["lr"],
            "phase": self.phase,
            "sparsity": zeros.ratio,
            "layers": {layer.name: layer.ratio for layer in zeros.layers},
            "seconds": seconds,
        }
        self.watch.event(event)
        self._write()
        self._save_scores(self.position.epoch - 1)

    def _save(self) -> None:
        """Keep the state within an epoch; the first process keeps the sums of all."""
        sums = self.machine.total(self.sums)
        self.sums = sums if self.machine.main else torch.zeros_like(sums)
        loss, right, seen = self.sums.tolist()
        self.position.loss, self.position.right, self.position.seen = loss, int(right), int(seen)
        self.position.seconds = time.monotonic() - self.began
        self._write()

    def _save_scores(self, epoch: int) -> None:
        if self.teacher is not None:
            self.teacher.save(epoch)

    def _write(self) -> None:
        if self.machine.main:
            self.checkpoint.save(self.position)
        self.machine.wait()
        self.saved_at = time.monotonic()


def _average(model: nn.Module, settings: Training) -> AveragedModel | None:
    if not isinstance(settings, Dense) or not settings.ema:
        return None
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(settings.ema), use_buffers=True)
