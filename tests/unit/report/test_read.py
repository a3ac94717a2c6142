"""read_run: what the events say is what the run holds, whole or killed half-way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rsprune.errors import RunError
from rsprune.report import tables
from rsprune.report.read import read_run
from tests.unit.report.events import events, write


def of(told: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in told if event["event"] == kind]


@pytest.mark.parametrize(
    ("asked", "was", "shown"),
    [("auto", "cost", True), ("auto", "even", False), ("cost", None, True), (None, None, False)],
)
def test_the_widths_say_whether_they_went_by_cost(
    tmp_path: Path, asked: str | None, was: str | None, shown: bool
) -> None:
    """Rounds of earlier versions do not; there the recipe does."""
    told = events()
    told[0]["recipe"]["compress"] = {"target_macs": 0.5, "spread": asked}
    for event in of(told, "round"):
        event |= {"spread": was} if was else {}
    title = tables.widths(read_run(write(tmp_path, told))).caption
    assert "target_macs = 0.5" in title
    assert ("by what a weight costs" in title) == shown


def test_every_event_is_read(tmp_path: Path) -> None:
    """Epochs, rounds, widths and outcomes are those of the file, to the last digit."""
    told = events()
    run = read_run(write(tmp_path, told))
    assert [(e.stage, e.epoch, e.loss, e.phase, e.sparsity, e.layers) for e in run.epochs] == [
        (e["stage"], e["epoch"], e["loss"], e["phase"], e["sparsity"], e["layers"])
        for e in of(told, "epoch")
    ]
    assert [r.lam for r in run.rounds] == [e["lam"] for e in of(told, "round")]
    assert {e.lam for e in run.epochs if e.stage == "explore"} == {r.lam for r in run.rounds}
    widths = [
        (w["group"], w["from"], w["to"], w["driver"])
        for e in of(told, "round")
        for w in e["widths"]
    ]
    assert [(w.group, w.before, w.after, w.driver) for r in run.rounds for w in r.widths] == widths
    (finish,) = of(told, "finish")
    assert run.finish is not None
    assert run.finish.after.cost.macs == finish["after"]["macs"]
    assert run.finish.before.latency == finish["before"]["latency"]
    assert run.finetuned == {1: of(told, "finetuned")[0]["accuracy"]}
    assert run.unreadable == 0


@pytest.mark.parametrize("cut", [1, 40, 150])
def test_half_a_last_line(tmp_path: Path, cut: int) -> None:
    """A run that was killed while writing loses its last event, and says so."""
    path = write(tmp_path) / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    run = read_run(tmp_path)
    lost = cut > 1  # the newline alone is not missed
    assert run.unreadable == lost
    assert (run.finish is None) == lost
    assert len(run.epochs) == 40


def test_half_a_character(tmp_path: Path) -> None:
    """A line that ends inside a character of two bytes is half a line like any other."""
    path = write(tmp_path) / "events.jsonl"
    path.write_bytes(path.read_bytes() + '{"event": "stagé'.encode()[:-1])
    assert read_run(tmp_path).unreadable == 1


def test_what_was_told_last_holds(tmp_path: Path) -> None:
    """A resumed run may tell an epoch, a round or its start again."""
    told = events()
    again = next(e for e in told if e["event"] == "epoch" and e["stage"] == "explore")
    told.append({**again, "loss": 7.5})
    told.append({**of(told, "round")[0], "accuracy": 0.5})
    told.append({**told[0], "time": "later"})
    run = read_run(write(tmp_path, told))
    assert len(run.epochs) == 40
    assert next(e for e in run.epochs if e.stage == "explore").loss == 7.5
    assert run.rounds[0].accuracy == 0.5
    assert len(run.rounds) == 2
    assert run.start.time == told[0]["time"]


def test_a_diverged_loss(tmp_path: Path) -> None:
    """NaN and infinity are values that are not there."""
    told = events()
    of(told, "epoch")[0]["loss"] = float("nan")
    of(told, "epoch")[1]["loss"] = float("inf")
    run = read_run(write(tmp_path, told))
    assert [e.loss for e in run.epochs[:2]] == [None, None]


def test_unknown_events_are_left_out(tmp_path: Path) -> None:
    """A newer rsprune may tell more."""
    told = [*events(), {"event": "weather", "sun": True}]
    assert read_run(write(tmp_path, told)).finish is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "is not the directory of a run"),
        ("", "the run has not begun"),
        ("not json\n", "the run has not begun"),
        ('{"event": "start", "time": "now"}\n', "lacks 'version'"),
    ],
    ids=["missing", "empty", "damaged", "incomplete"],
)
def test_no_run(tmp_path: Path, text: str | None, said: str) -> None:
    """What is not a run is refused by name."""
    if text is not None:
        (tmp_path / "events.jsonl").write_text(text)
    with pytest.raises(RunError, match=said) as caught:
        read_run(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_damaged_round_names_its_key(tmp_path: Path) -> None:
    """An event without one of its numbers is refused, not shown as zero."""
    told = events()
    del of(told, "round")[0]["before"]["macs"]
    with pytest.raises(RunError, match="lacks 'macs'"):
        read_run(write(tmp_path, told))


def test_the_example_is_consistent() -> None:
    """The generator's own sums agree, so that tests on it mean something."""
    told = events()
    json.dumps(told, allow_nan=False)
    (finish,) = of(told, "finish")
    for side in ("before", "after"):
        assert sum(layer[side]["macs"] for layer in finish["layers"]) == finish[side]["macs"]
    assert of(told, "round")[0]["after"] == of(told, "round")[1]["before"]
