"""A target of latency is shared out over the rounds; what was measured is not measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rsprune.compression import widths
from rsprune.compression.widths import Options
from rsprune.errors import InvalidParameterError
from rsprune.recursion import PruneResult, recursive_prune
from rsprune.structure.groups import ChannelGraph
from tests.unit.compression.clocks import PaperClock
from tests.unit.compression.networks import IMAGE, Chain

X = IMAGE[:1]


class Watch:
    """Puts clocks on paper in the place of this machine's, and counts what they measure."""

    def __init__(self, fixed: float = 0.0) -> None:
        self.fixed = fixed
        self.clocks: list[PaperClock] = []

    def __call__(self, model: nn.Module, _graph: ChannelGraph, _options: Options) -> PaperClock:
        self.clocks.append(PaperClock(model, X, liked=4, odd=1.5, fixed=self.fixed))
        return self.clocks[-1]

    @property
    def measured(self) -> int:
        return sum(clock.measured for clock in self.clocks)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    found = Watch()
    monkeypatch.setattr(widths, "machine", found)
    return found


def run(directory: Path | None = None, **changes: Any) -> PruneResult:
    torch.manual_seed(0)
    options: dict[str, Any] = {
        "explore": lambda _model, _lam: None, "evaluate": lambda _: 0.9, "directory": directory,
        "rounds": 2, "epsilon": 0.05, "target_latency": 0.25, "round_to": "auto",
    }  # fmt: skip
    return recursive_prune(Chain(16), X, **{**options, **changes})


def test_the_way_is_shared_out_and_the_last_round_is_there(watch: Watch) -> None:
    """0.5 after the first of two rounds, 0.25 after the second, of the given model's time."""
    told: list[dict[str, Any]] = []
    result = run(on_event=told.append)
    times = [one.latency for one in result.history]
    assert times == [pytest.approx(0.4875, abs=0.0125), pytest.approx(0.24, abs=0.01)]
    full, slim = watch.clocks[0].models([result.model])
    assert slim / full == pytest.approx(times[1])
    assert [e["latency"] for e in told if e["event"] == "round"] == times
    assert f", time {times[1]:.1%}, accuracy" in str(result)


def test_a_run_that_goes_on_measures_nothing_twice(watch: Watch, tmp_path: Path) -> None:
    """Not the check before training, nor the plans of rounds that were cut."""
    rounds = 0

    def explore(_model: nn.Module, _lam: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, explore=explore)
    before = watch.measured
    done = run(tmp_path)
    again = watch.measured
    assert before < again
    assert run(tmp_path).history == done.history
    assert watch.measured == again
    stages = json.loads((tmp_path / "state.json").read_text())["stages"]
    assert stages["round-0.cut"]["latency"] == done.history[0].latency
    fresh = Watch()
    assert again == _measured_by(fresh)


def _measured_by(watch: Watch) -> int:
    """What a run measures that is not interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(widths, "machine", watch)
        run()
    return watch.measured


@pytest.mark.usefixtures("watch")
def test_a_cut_to_a_time_may_go_by_cost() -> None:
    (cut,) = run(rounds=1, spread="cost", round_to=1).history
    assert cut.spread == "cost"
    assert cut.latency is not None
    assert cut.latency <= 0.25


def test_an_impossible_target_is_refused_before_any_training(watch: Watch) -> None:
    watch.fixed = 1.0

    def explore(_model: nn.Module, _lam: float) -> None:
        raise AssertionError("trained")

    with pytest.raises(InvalidParameterError, match=r"'target_latency'.*at least"):
        run(explore=explore)


def test_without_times_the_place_of_measuring_says_nothing(watch: Watch, tmp_path: Path) -> None:
    """A directory of a version that did not know these arguments goes on."""
    run(tmp_path, target_latency=None, round_to=1, target_macs=0.5)
    path = tmp_path / "state.json"
    content = json.loads(path.read_text())
    assert not {"runtime", "batch", "threads"} & content["arguments"].keys()
    assert "times" not in content["stages"]
    assert watch.measured == 0
    del content["arguments"]["target_latency"]
    path.write_text(json.dumps(content))
    run(tmp_path, target_latency=None, round_to=1, target_macs=0.5, batch=8)


@pytest.mark.parametrize(
    "changes",
    [{"target_latency": 0.5}, {"round_to": "auto", "target_latency": None}, {"runtime": "compile"}],
)
def test_zero_groups_measure_nothing(changes: dict[str, Any]) -> None:
    usual = {"mode": "zero-groups", "epsilon": 0.1, "target_latency": None, "round_to": 1}
    with pytest.raises(InvalidParameterError, match="zero-groups") as caught:
        run(**{**usual, **changes})
    assert caught.value.name in changes
