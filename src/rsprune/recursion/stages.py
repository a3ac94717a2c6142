"""The stages of a recursion; each is done once, recorded, and told to the user's ``on_event``.

Files and records are named after the round: ``round-0.explored`` is M^0 after sparse training,
``round-0.cut`` is M^1 as it was cut from that, ``round-0.finetuned`` is M^1 after fine-tuning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from rsprune.compression import Compressed, compress_with_plan, layer_sparsity
from rsprune.compression.widths import check_measuring
from rsprune.errors import DivergenceError, RsPruneWarning
from rsprune.metrics.macs import profile
from rsprune.recursion.callables import scored, trained
from rsprune.recursion.result import Round, Size, Width
from rsprune.recursion.settings import Settings
from rsprune.recursion.state import GIVEN, State
from rsprune.recursion.stopping import Rules
from rsprune.structure.trace import trace

Explore = Callable[[nn.Module, float], nn.Module | None]
Evaluate = Callable[[nn.Module], float]
Finetune = Callable[[nn.Module], nn.Module | None]
OnEvent = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Candidate:
    """A compressed model that may become the result.

    Attributes:
        round: the round whose cut made it.
        stage: the stage that left its weights.
        accuracy: on validation data.
        size: what it costs.
        finetuned: its accuracy after fine-tuning, if there was any; that is the one above, unless
            the weights before fine-tuning were better.
        diverged: how fine-tuning broke off; None if it did not.
    """

    round: int
    stage: str
    accuracy: float
    size: Size
    finetuned: float | None = None
    diverged: str | None = None


def check_times(model: nn.Module, inputs: Any, settings: Settings) -> None:
    """Refuse a runtime or a target of latency that cannot be.

    All rounds together have to get there, and the first one as far as it should.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RsPruneWarning)  # the real cuts repeat what matters
        graph = trace(model, inputs)
    target = settings.target_latency
    for rounds in dict.fromkeys((settings.rounds, 1)) if target is not None else (1,):
        epsilon = float(settings.cut["epsilon"]) ** rounds
        aim = None if target is None else float(target) ** (rounds / settings.rounds)
        check_measuring(model, graph, settings.options(epsilon=epsilon, target_latency=aim))


@dataclass(frozen=True)
class Stages:
    """What :func:`rsprune.recursive_prune` was called with, as stages on recorded models."""

    state: State
    settings: Settings
    inputs: Any
    batches: Iterable[Any] | None
    full: Size  # of M^0
    explore: Explore
    evaluate: Evaluate
    finetune: Finetune | None
    on_event: OnEvent | None

    def check_times(self) -> None:
        """Refuse a runtime or a target of latency that cannot be, before any training."""
        if self.settings.measures:
            self.state.once("times", self._check_times)

    def _check_times(self) -> None:
        check_times(self.state.fetch(GIVEN), self.inputs, self.settings)

    def baseline(self) -> float:
        """The accuracy of the given model."""
        accuracy = self._accuracy(GIVEN)
        event = {"event": "baseline", "validation_accuracy": accuracy, **asdict(self.full)}
        self.tell(f"{GIVEN}.accuracy", event)
        return accuracy

    def explored(self, t: int, lam: float, size: Size) -> Round:
        """Sparse training of M^t, of the given size: round t before its cut."""
        stage = f"round-{t}.explored"
        start = f"round-{t - 1}.cut" if t else GIVEN
        diverged = self._train(stage, start, "explore", self.explore, lam)
        if diverged is not None:
            return Round(t, lam, None, None, size, diverged=diverged)
        sparsity = self.state.once(f"{stage}.sparsity", lambda: self._sparsity(stage))
        return Round(t, lam, sparsity, self._accuracy(stage), size)

    def cut(self, explored: Round, time: float) -> tuple[Round, Size]:
        """Round t with its cut of M^t to M^{t+1}, and the size of the latter.

        ``time`` is the part of the given model's time that M^t takes, if that has a target.
        """
        t = explored.round
        stage = f"round-{t}.cut"
        value = self.state.once(stage, lambda: self._compress(t, explored.before, time))
        after, widths = Size(**value["size"]), tuple(Width(**row) for row in value["widths"])
        done = replace(
            explored, after=after, widths=widths, latency=value.get("latency"),
            spread=value.get("spread", self.settings.cut["spread"]),
        )  # fmt: skip
        self.tell(stage, done.event())
        return done, after

    def tuned(self, made: Round, explored: Round | None, rules: Rules) -> Candidate:
        """M^{t+1}, which round ``made`` cut, after fine-tuning, or before if that is better.

        Args:
            made: the round that cut it.
            explored: the next round, if its sparse training came to an end: fine-tuning starts
                from there, unless it lost accuracy, and else from the model as it was cut.
            rules: say what is lost. Only where fine-tuning lost accuracy, too, is the model that
                it started from evaluated as it was cut.
        """
        cut, sparse = f"round-{made.round}.cut", f"round-{made.round + 1}.explored"
        stage = f"round-{made.round}.finetuned"
        size = made.after or made.before
        lost = explored is None or rules.regressed(explored.accuracy or 0.0)
        start = cut if lost else sparse
        found = []
        diverged = tuned = None
        if explored is not None and explored.accuracy is not None:
            found.append(Candidate(made.round, sparse, explored.accuracy, size))
        if self.finetune is not None:
            diverged = self._train(stage, start, "finetune", self.finetune)
        if self.finetune is not None and diverged is None:
            tuned = self._accuracy(stage)
            found.insert(0, Candidate(made.round, stage, tuned, size))
            event = {"event": "finetuned", "round": made.round, "accuracy": tuned}
            self.tell(f"{stage}.accuracy", event)
        if start == cut and (tuned is None or rules.regressed(tuned)):
            found.append(Candidate(made.round, cut, self._accuracy(cut), size))
        best = max(found, key=lambda candidate: candidate.accuracy)
        return replace(best, finetuned=tuned, diverged=diverged)

    def tell(self, stage: str, event: dict[str, Any]) -> None:
        """Report a stage that was done, now or (``resumed``) by an earlier call."""
        if self.on_event is not None:
            self.on_event({**event, "resumed": stage in self.state.earlier})

    def _train(
        self, stage: str, start: str, name: str, function: Callable[..., Any], *args: Any
    ) -> str | None:
        """Train the model of ``start`` and keep it; how that diverged, or None."""

        def train() -> str | None:
            try:
                model = trained(name, function, self.state.fetch(start), *args)
            except DivergenceError as error:
                return str(error)
            self.state.keep(stage, model)
            return None

        diverged: str | None = self.state.once(stage, train)
        return diverged

    def _accuracy(self, stage: str) -> float:
        return float(
            self.state.once(
                f"{stage}.accuracy", lambda: scored(self.evaluate, self.state.fetch(stage))
            )
        )

    def _sparsity(self, stage: str) -> float:
        layers = layer_sparsity(self.state.fetch(stage)).values()
        return sum(one.zeros for one in layers) / sum(one.elements for one in layers)

    def _compress(self, t: int, size: Size, time: float) -> dict[str, Any]:
        """Algorithm 2 or 3 on M^t after sparse training; size, widths and time of M^{t+1}."""
        model = self.state.fetch(f"round-{t}.explored")
        targets = self.settings.targets(t, self.full, size, time)
        made = cut_model(
            model, self.inputs, t, batches=self.batches, **self.settings.cut, **targets
        )
        self.state.keep(f"round-{t}.cut", made.model)
        rows = [
            Width(group.name, group.size, group.width, group.sparsity, group.driver)
            for group in made.plan.groups
        ]
        value: dict[str, Any] = {
            "size": asdict(measured(made.model, self.inputs)),
            "widths": [asdict(row) for row in rows],
            "spread": made.plan.spread,
        }
        if self.settings.target_latency is not None:
            value["latency"] = time * (1.0 if made.plan.time is None else made.plan.time.share)
        return value


def cut_model(model: nn.Module, inputs: Any, t: int, **options: Any) -> Compressed:
    """The cut of round t: weights that are made anew depend on nothing but t."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(t)
        return compress_with_plan(model, inputs, **options)


def measured(model: nn.Module, inputs: Any) -> Size:
    """What a model costs."""
    found = profile(model, inputs)
    return Size(found.macs, found.weights, found.params)
