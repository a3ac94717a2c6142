"""The events of a run: on disk when they are told, and each once, also after a kill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rsprune.engine.events import EventLog
from rsprune.errors import StorageError


def epoch(number: int, loss: float = 1.0) -> dict[str, object]:
    return {"event": "epoch", "stage": "explore", "round": 0, "epoch": number, "loss": loss}


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for number in (1, 2):
        log.append(epoch(number))
    assert EventLog(path).events == lines(path) == [epoch(1), epoch(2)]


def test_what_is_repeated_replaces_what_followed(tmp_path: Path) -> None:
    """A resumed run repeats an epoch: the old one and all after it are gone."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for number in (1, 2, 3):
        log.append(epoch(number))
    again = EventLog(path)
    assert again.holds(epoch(2))
    again.append(epoch(2, loss=0.5))
    assert lines(path) == again.events == [epoch(1), epoch(2, 0.5)]
    again.append(epoch(3))
    assert lines(path) == [epoch(1), epoch(2, 0.5), epoch(3)]


def test_half_a_line_is_dropped(tmp_path: Path) -> None:
    """As a kill in the middle of a write leaves it."""
    path = tmp_path / "events.jsonl"
    EventLog(path).append(epoch(1))
    with path.open("a") as file:
        file.write('{"event": "epo')
    log = EventLog(path)
    assert log.events == [epoch(1)]
    log.append(epoch(2))
    assert lines(path) == [epoch(1), epoch(2)]


def test_a_disk_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "gone" / "events.jsonl")
    with pytest.raises(StorageError, match=r"could not be written.*intact"):
        log.append(epoch(1))
