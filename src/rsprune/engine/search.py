"""The search for lambda^0: the largest penalty that keeps the accuracy (SPEC section 3).

Short sparse trainings of the same baseline, one for each power of ten, each given up as soon as its
accuracy is hopeless. optuna keeps the study in SQLite, so that a search can be stopped and go on.
"""

from __future__ import annotations

import copy
import json
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

import rsprune
from rsprune.compression import compress_with_plan
from rsprune.engine.directory import alone
from rsprune.engine.events import Event
from rsprune.engine.recipe import SEARCH
from rsprune.engine.run import Run
from rsprune.engine.train import Watch
from rsprune.errors import DivergenceError, RsPruneWarning, RunError
from rsprune.files import write_atomic
from rsprune.optim.diagnostics import sparsity

POWERS = (1e-2, 1e-3, 1e-4, 1e-5)
TOLERANCE = 0.01
_HOPELESS = 0.2  # below the wanted accuracy by so much, from half-way on, a training is given up
_DONE = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True)
class Tried:
    """One penalty and what came of it.

    Attributes:
        lam: the penalty.
        accuracy: on validation data; None if the training was given up.
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
    powers: Sequence[float] | None = None,
    tolerance: float | None = None,
    storage: str | None = None,
) -> Search:
    """Try every penalty on the baseline of the run in ``directory``, but none twice.

    What is None is as it was when the search began.

    Args:
        directory: a run directory with its recipe; ``explore.epochs`` is the length of each try.
        watcher: who is told.
        powers: the penalties; 1e-2 to 1e-5 by default.
        tolerance: validation accuracy that may be lost; 0.01 by default.
        storage: optuna's data base; by default ``study.db`` in the directory.

    Raises:
        RunError: if a launcher started several processes.
    """
    given = {"powers": powers, "tolerance": tolerance, "storage": storage}
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RunError(
            "A search runs in one process, not in several of a launcher. Search for each penalty "
            "by itself, on a GPU of its own: CUDA_VISIBLE_DEVICES=0 rsprune search-lambda RECIPE "
            "--powers 1e-3 --out DIR"
        )
    with alone(directory):
        settings = _settings(directory, given)
        study = _study(directory, settings["storage"])
        run = Run(directory, watcher)
        run.baseline()
        baseline = run.validate(run.model)
        wanted = baseline - settings["tolerance"]
        study.pruner = optuna.pruners.ThresholdPruner(
            lower=wanted - _HOPELESS, n_warmup_steps=run.recipe.explore.epochs // 2
        )
        for lam in sorted(set(settings["powers"]) - set(_done(study)), reverse=True):
            _try(study, run, lam)
    found = [trial for lam, trial in _done(study).items() if lam in settings["powers"]]
    tried = sorted(map(_tried, found), key=lambda one: -one.lam)
    return Search(baseline, wanted, tuple(tried))


def _settings(directory: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The search's own settings: those it began with, and those given now."""
    path = directory / SEARCH
    settings: dict[str, Any] = {"powers": POWERS, "tolerance": TOLERANCE, "storage": None}
    if path.exists():
        settings |= json.loads(path.read_text())
    elif (directory / "events.jsonl").exists():
        raise RunError(f"'{directory}' holds a run of rsprune compress, not a search.")
    settings |= {name: value for name, value in given.items() if value is not None}
    write_atomic(path, json.dumps(settings) + "\n")
    return settings


def _study(directory: Path, storage: str | None) -> optuna.Study:
    """The study of this search, without what was interrupted."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    place = storage or f"sqlite:///{directory / 'study.db'}"
    try:
        study = optuna.create_study(
            storage=place,
            study_name=str(directory.resolve()) if storage else "lambda",  # many in one data base
            load_if_exists=True,
            direction="maximize",
        )
    except Exception as error:  # of any data base
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        shown = re.sub(r":[^:@/]+@", ":***@", place)  # without a password
        raise RunError(
            f"The study '{shown}' cannot be opened: {reason}. Choose another place with --storage, "
            "or delete it to search anew."
        ) from error
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
    return study


def _done(study: optuna.Study) -> dict[float, FrozenTrial]:
    return {trial.params["lam"]: trial for trial in study.get_trials(states=_DONE)}


def _try(study: optuna.Study, run: Run, lam: float) -> None:
    trial = study.ask({"lam": optuna.distributions.FloatDistribution(lam, lam)})
    number = _number(run, lam)
    try:
        accuracy = _explore(run, trial, lam, number)
    except optuna.TrialPruned:
        accuracy = None
        trial.set_user_attr("remark", "given up: the accuracy fell too far")
    except DivergenceError:
        accuracy = None
        trial.set_user_attr("remark", "diverged: lower explore.lr, or set explore.clip")
    trial.set_user_attr("epochs", run.log.epochs_of("explore", number))
    study.tell(trial, accuracy, TrialState.PRUNED if accuracy is None else TrialState.COMPLETE)


def _number(run: Run, lam: float) -> int:
    """The number of this penalty's training; that of one which was interrupted is found again."""
    stages = [e for e in run.log.events if (e["event"], e.get("stage")) == ("stage", "explore")]
    return next((e["round"] for e in stages if e["lam"] == lam), len(stages))


def _explore(run: Run, trial: Trial, lam: float, number: int) -> float:
    """Train a copy of the baseline; its accuracy."""
    model = copy.deepcopy(run.model)
    watcher, run.watcher = run.watcher, _Reporter(run.watcher, trial)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RsPruneWarning)  # weak: the table shows it
            run.explore(model, lam, number=number)
    finally:
        run.watcher = watcher
    slim = compress_with_plan(model, run.example, **run.cut_options).model  # weak ones too
    sizes = [rsprune.profile(one, run.example).macs for one in (slim, model)]
    trial.set_user_attr("sparsity", sparsity(model).ratio)
    trial.set_user_attr("macs", sizes[0] / sizes[1])
    return run.validate(model)


class _Reporter:
    """Tells optuna the accuracy of every epoch, and a watcher everything."""

    def __init__(self, watcher: Watch, trial: Trial) -> None:
        self.watcher, self.trial = watcher, trial

    @property
    def stopping(self) -> bool:
        return self.watcher.stopping

    def step(self, done: int, total: int, loss: float, accuracy: float) -> None:
        self.watcher.step(done, total, loss, accuracy)

    def event(self, event: Event) -> None:
        self.watcher.event(event)
        # a proximal phase releases weights, which costs an accuracy that the next phase brings back
        if event["event"] == "epoch" and event["phase"] != "prox":
            self.trial.report(event["validation_accuracy"], event["epoch"])
            if self.trial.should_prune():
                raise optuna.TrialPruned


def _tried(trial: FrozenTrial) -> Tried:
    kept = trial.user_attrs
    return Tried(
        trial.params["lam"], trial.value if trial.state == TrialState.COMPLETE else None,
        kept.get("sparsity"), kept.get("macs"), kept["epochs"], kept.get("remark", ""),
    )  # fmt: skip
