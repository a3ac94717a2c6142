"""The search for lambda^0: the largest penalty that keeps the accuracy (SPEC section 3).

Short sparse trainings of the same baseline, one for each power of ten, each given up as soon as its
accuracy is hopeless. optuna keeps the study in SQLite, so that a search can be stopped and go on.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

import rsprune
from rsprune.engine.events import Event
from rsprune.engine.run import Run
from rsprune.engine.train import Watch
from rsprune.errors import DivergenceError, RunError
from rsprune.optim.diagnostics import sparsity

POWERS = (1e-2, 1e-3, 1e-4, 1e-5)
_HOPELESS = 0.2  # below the wanted accuracy by so much, half-way through, a training is given up


@dataclass(frozen=True)
class Tried:
    """One penalty and what came of it.

    Attributes:
        lam: the penalty.
        accuracy: on validation data; None if the training diverged.
        sparsity: the share of zeros.
        macs: the share of multiply-accumulates that the width rule would leave.
        epochs: how long it was trained.
        remark: why it was given up, if it was.
    """

    lam: float
    accuracy: float | None
    sparsity: float | None
    macs: float | None
    epochs: int
    remark: str


@dataclass(frozen=True)
class Search:
    """What a search found: every penalty, the baseline's accuracy and the choice, if any."""

    baseline: float
    wanted: float
    tried: tuple[Tried, ...]

    @property
    def choice(self) -> float | None:
        """The largest penalty that keeps the accuracy."""
        good = [t.lam for t in self.tried if t.accuracy is not None and t.accuracy >= self.wanted]
        return max(good, default=None)


def search_lambda(
    directory: Path,
    watcher: Watch,
    *,
    powers: Sequence[float] = POWERS,
    tolerance: float = 0.01,
    storage: str | None = None,
) -> Search:
    """Try every penalty on the baseline of the run in ``directory``.

    Args:
        directory: a run directory with its recipe; ``explore.epochs`` is the length of each try.
        watcher: who is told.
        powers: the penalties.
        tolerance: validation accuracy that may be lost.
        storage: optuna's data base; by default ``study.db`` in the directory.
    """
    run = Run(directory, watcher)
    run.baseline()
    baseline = run.validate(run.model)
    wanted = baseline - tolerance
    study = _study(run, storage or f"sqlite:///{directory / 'study.db'}", wanted)
    done = {t.params["lam"] for t in study.trials if t.state.is_finished()}
    for lam in sorted(set(powers) - done, reverse=True):
        study.enqueue_trial({"lam": lam})
        trial = study.ask({"lam": optuna.distributions.FloatDistribution(0, 1e9)})
        accuracy = _explore(run, trial, lam)
        state = TrialState.COMPLETE if accuracy is not None else TrialState.PRUNED
        study.tell(trial, accuracy, state=state)
    finished = [t for t in study.trials if t.state.is_finished() and t.params["lam"] in powers]
    tried = sorted((_tried(trial) for trial in finished), key=lambda one: -one.lam)
    return Search(baseline, wanted, tuple(tried))


def _study(run: Run, storage: str, wanted: float) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(
            storage=storage,
            study_name="lambda",
            load_if_exists=True,
            direction="maximize",
            pruner=optuna.pruners.ThresholdPruner(
                lower=wanted - _HOPELESS, n_warmup_steps=run.recipe.explore.epochs // 2
            ),
        )
    except Exception as error:  # of any data base
        raise RunError(f"The study '{storage}' cannot be opened: {error}") from error


def _explore(run: Run, trial: Trial, lam: float) -> float | None:
    """Train a copy of the baseline; its accuracy, or None if it was given up."""
    model = copy.deepcopy(run.model)
    reporter = _Reporter(run.watcher, trial)
    run.watcher = reporter
    try:
        run.explore(model, lam, number=trial.number)
    except optuna.TrialPruned:
        trial.set_user_attr("remark", "given up: the accuracy fell too far")
        return None
    except DivergenceError as error:
        trial.set_user_attr("remark", str(error))
        return None
    finally:
        run.watcher = reporter.watcher
        trial.set_user_attr("epochs", reporter.epochs)
    slim = rsprune.compress(model, run.example, **run.cut_options)
    sizes = [rsprune.profile(one, run.example).macs for one in (slim, model)]
    trial.set_user_attr("sparsity", sparsity(model).ratio)
    trial.set_user_attr("macs", sizes[0] / sizes[1])
    return run.validate(model)


class _Reporter:
    """Tells optuna the accuracy of every epoch, and a watcher everything."""

    def __init__(self, watcher: Watch, trial: Trial) -> None:
        self.watcher, self.trial, self.epochs = watcher, trial, 0

    @property
    def stopping(self) -> bool:
        return self.watcher.stopping

    def step(self, done: int, total: int, loss: float, accuracy: float) -> None:
        self.watcher.step(done, total, loss, accuracy)

    def event(self, event: Event) -> None:
        self.watcher.event(event)
        if event["event"] == "epoch":
            self.epochs = event["epoch"]
            self.trial.report(event["validation_accuracy"], self.epochs)
            if self.trial.should_prune():
                raise optuna.TrialPruned


def _tried(trial: FrozenTrial) -> Tried:
    kept = trial.user_attrs
    return Tried(
        trial.params["lam"], trial.value if trial.state == TrialState.COMPLETE else None,
        kept.get("sparsity"), kept.get("macs"), kept.get("epochs", 0), kept.get("remark", ""),
    )  # fmt: skip
