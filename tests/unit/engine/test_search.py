"""The search for lambda: every penalty once, the hopeless not to their end, and it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

import optuna

from rsprune.engine import search
from rsprune.engine.directory import begin
from rsprune.engine.recipe import read_recipe
from rsprune.engine.search import Search, Tried, search_lambda
from rsprune.errors import RunError

POWERS = (0.3, 1e-3, 1e-5)
OPTIONS = {
    "model_options.width": "8", "baseline.epochs": "4", "explore.epochs": "4", "threads": "1",
    "explore.prox_epochs": "2", "explore.orthant_epochs": "1",
}  # fmt: skip


class Watch:
    """Stops a search after a number of steps in a stage."""

    def __init__(self, stop_in: float | None = None, after: int = 0) -> None:
        self.stop_in, self.after, self.stopping = stop_in, after, False
        self.events: list[dict[str, Any]] = []

    def event(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.stopping = self.stop_in is not None and self._lam == self.stop_in and self.after == 0
        if self._lam == self.stop_in:
            self.after -= 1

    def step(self, *_: float) -> None:
        pass

    @property
    def _lam(self) -> float | None:
        stages = [event["lam"] for event in self.events if event["event"] == "stage"]
        return stages[-1] if stages else None

    def epochs(self) -> list[tuple[int, int]]:
        found = [e for e in self.events if (e["event"], e.get("stage")) == ("epoch", "explore")]
        return [(event["round"], event["epoch"]) for event in found]


def started(directory: Path, **options: str) -> Path:
    begin(read_recipe(None, {**OPTIONS, **options}), directory)
    return directory


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Search, Watch]:
    directory = started(tmp_path_factory.mktemp("search") / "whole")
    watch = Watch()
    return directory, search_lambda(directory, watch, powers=POWERS, tolerance=0.05), watch


def test_the_largest_penalty_that_keeps_the_accuracy(whole: tuple[Path, Search, Watch]) -> None:
    """One is hopeless and given up; of the others, more penalty makes more zeros."""
    _, found, _ = whole
    assert [one.lam for one in found.tried] == [0.3, 1e-3, 1e-5]
    hopeless, strong, weak = found.tried
    assert (hopeless.accuracy, hopeless.remark) == (None, "given up: the accuracy fell too far")
    assert hopeless.epochs == 3  # the second ends a proximal phase, which is not judged
    assert (strong.epochs, weak.epochs) == (4, 4)
    assert strong.sparsity is not None
    assert weak.sparsity is not None
    assert strong.sparsity > weak.sparsity
    assert found.wanted == found.baseline - 0.05
    assert found.choice == 1e-3


def test_a_finished_search_is_not_repeated(whole: tuple[Path, Search, Watch]) -> None:
    """It remembers its penalties and its tolerance."""
    directory, found, _ = whole
    watch = Watch()
    assert search_lambda(directory, watch) == found
    assert watch.events == []


def test_a_search_that_was_stopped_goes_on_in_the_middle(
    whole: tuple[Path, Search, Watch], tmp_path: Path
) -> None:
    """No epoch is trained twice, and what is found is what a search without a break finds."""
    _, expected, undisturbed = whole
    directory = started(tmp_path / "x")
    first, second = Watch(stop_in=1e-3, after=2), Watch()
    with pytest.raises(KeyboardInterrupt):
        search_lambda(directory, first, powers=POWERS, tolerance=0.05)
    assert search_lambda(directory, second) == expected
    assert first.epochs() + second.epochs() == undisturbed.epochs()


def test_penalties_can_be_added(tmp_path: Path) -> None:
    directory = started(tmp_path / "x", **{"baseline.epochs": "1", "explore.epochs": "1"})
    first = search_lambda(directory, Watch(), powers=(1e-3,), tolerance=0.05)
    watch = Watch()
    found = search_lambda(directory, watch, powers=(1e-3, 1e-5))
    assert [one.lam for one in found.tried] == [1e-3, 1e-5]
    assert found.tried[0] == first.tried[0]
    assert watch.epochs() == [(1, 1)]


def test_divergence_is_a_row(tmp_path: Path) -> None:
    directory = started(tmp_path / "x", **{"explore.lr": "1e9", "baseline.epochs": "1"})
    found = search_lambda(directory, Watch(), powers=(1e-5, 1e-4))
    assert [one.remark.partition(":")[0] for one in found.tried] == ["diverged", "diverged"]
    assert found.choice is None


def test_a_data_base_of_ones_own_holds_many_searches(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'mine.db'}"
    for name, lam in (("x", 1e-3), ("y", 1e-5)):
        directory = started(tmp_path / name, **{"baseline.epochs": "1", "explore.epochs": "1"})
        found = search_lambda(directory, Watch(), powers=(lam,), storage=storage)
        assert [one.lam for one in found.tried] == [lam]
        assert search_lambda(directory, Watch()) == found
    assert not (tmp_path / "x" / "study.db").exists()


@pytest.mark.parametrize("storage", ["sqlite:////nowhere/x.db", "nonsense", "oracle://x"])
def test_a_data_base_that_cannot_be_opened(storage: str, tmp_path: Path) -> None:
    """Known before anything is trained."""
    directory, watch = started(tmp_path / "x"), Watch()
    with pytest.raises(RunError, match=f"The study '{storage}' cannot be opened: .+"):
        search_lambda(directory, watch, storage=storage)
    assert watch.events == []


def test_a_password_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"'oracle://me:\*\*\*@host/x' cannot be opened") as told:
        search_lambda(started(tmp_path / "x"), Watch(), storage="oracle://me:secret@host/x")
    assert "secret" not in str(told.value)


def test_a_run_is_no_search(tmp_path: Path) -> None:
    directory = started(tmp_path / "x")
    (directory / "events.jsonl").write_text("")
    with pytest.raises(RunError, match="holds a run of rsprune compress, not a search"):
        search_lambda(directory, Watch())
    assert not (directory / "search.json").exists()


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would share a study, and only the first would give up on a hopeless penalty."""
    directory = started(tmp_path / "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RunError, match=r"one process.*CUDA_VISIBLE_DEVICES=0 rsprune search"):
        search_lambda(directory, Watch())
    assert not (directory / "search.json").exists()


def test_the_choice() -> None:
    rows = [Tried(lam, accuracy, 0.5, 0.5, 3, "") for lam, accuracy in
            ((1e-2, None), (1e-3, 0.7), (1e-4, 0.9), (1e-5, 0.95))]  # fmt: skip
    assert Search(0.95, 0.9, tuple(rows)).choice == 1e-4
    assert Search(0.95, 0.99, tuple(rows)).choice is None


def test_a_proximal_phase_is_not_judged() -> None:
    """It costs accuracy for as long as it lasts; what follows is judged."""
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(lower=0.8))
    reporter = search._Reporter(Watch(), study.ask())
    low = {"event": "epoch", "stage": "explore", "round": 0, "validation_accuracy": 0.4}
    reporter.event({**low, "epoch": 1, "phase": "prox"})
    for number, phase in enumerate(("orthant", None), 2):  # other optimizers have no phases
        with pytest.raises(optuna.TrialPruned):
            reporter.event({**low, "epoch": number, "phase": phase})
