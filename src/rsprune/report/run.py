"""A run, as a report sees it: what was asked for, what happened, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rsprune.metrics.comparison import LatencyComparison


@dataclass(frozen=True)
class Cost:
    """What a model costs: multiply-accumulates, weights of its layers, all parameters."""

    macs: int
    weights: int
    params: int


@dataclass(frozen=True)
class Epoch:
    """One epoch of training.

    Attributes:
        stage: baseline, explore or finetune; with ``round`` it names the training.
        accuracy: on the training data, as they were trained on.
        phase: prox, orthant or half-space; None without a sparse optimizer.
        layers: the sparsity of every layer's weights.
    """

    stage: str
    round: int
    epoch: int
    epochs: int
    loss: float | None
    accuracy: float | None
    validation_accuracy: float | None
    lr: float | None
    phase: str | None
    sparsity: float | None
    layers: Mapping[str, float]
    seconds: float | None
    lam: float | None


@dataclass(frozen=True)
class Width:
    """A channel group's width before and after a cut, and the sparsity that decided it."""

    group: str
    before: int
    after: int
    sparsity: float | None
    driver: str


@dataclass(frozen=True)
class Round:
    """One round of the recursion: the sparse model, and what was cut from it.

    Attributes:
        accuracy: of the sparse model before the cut, on the validation data.
        after: what the model costs after the cut; None if it was not cut.
        by_cost: whether the cut was told to have gone by what a weight costs.
    """

    round: int
    lam: float
    sparsity: float | None
    accuracy: float | None
    before: Cost
    after: Cost | None
    widths: tuple[Width, ...]
    by_cost: bool


@dataclass(frozen=True)
class Outcome:
    """A model at the beginning or the end of the run; None is what was not measured."""

    cost: Cost
    validation_accuracy: float | None
    test_accuracy: float | None
    latency: float | None
    validation_top5: float | None = None
    test_top5: float | None = None


@dataclass(frozen=True)
class LayerChange:
    """A layer's weight and multiply-accumulates at the beginning and the end of the run."""

    name: str
    shape_before: tuple[int, ...]
    shape_after: tuple[int, ...]
    macs_before: int
    macs_after: int


@dataclass(frozen=True)
class Finish:
    """How the run ended."""

    stopped: str
    seconds: float | None
    before: Outcome
    after: Outcome
    layers: tuple[LayerChange, ...]


@dataclass(frozen=True)
class Start:
    """What the run was asked to do, and where it ran."""

    time: str
    version: str
    model: str
    data: str
    classes: int | None
    input_shape: tuple[int, ...]
    sizes: Mapping[str, int]
    recipe: Mapping[str, Any]
    environment: Mapping[str, Any]
    weights_sha256: str | None


@dataclass(frozen=True)
class Run:
    """All that a report shows.

    Attributes:
        epochs: of all stages, in the order they were run.
        finetuned: the accuracy on the validation data after fine-tuning, by round.
        finish: None if the run has not finished.
        unreadable: lines that could not be read.
        latency: of the first and the last model; None if ``latency.json`` is not there.
    """

    start: Start
    epochs: tuple[Epoch, ...] = ()
    baseline: Outcome | None = None
    rounds: tuple[Round, ...] = ()
    finetuned: Mapping[int, float | None] = field(default_factory=dict)
    finish: Finish | None = None
    unreadable: int = 0
    latency: LatencyComparison | None = None
