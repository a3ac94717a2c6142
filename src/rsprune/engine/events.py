"""What happened in a run: ``events.jsonl``, one JSON object a line.

The file only grows, with one exception: a resumed run repeats what came after its last checkpoint,
and the first event that is there already replaces the old one and all that followed it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rsprune.errors import RunError, StorageError

Event = dict[str, Any]
_KEY = ("event", "stage", "round", "epoch")


class EventLog:
    """The events of one run, on disk and in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self._starts: dict[tuple[Any, ...], int] = {}  # where in the file an event begins
        end = 0
        for line in _lines(path):
            event = _parsed(path, line)
            self.events.append(event)
            self._starts[_key(event)] = end
            end += len(line)
        self._end = end

    def find(self, kind: str) -> Event | None:
        """The last event of a kind, if there is one."""
        return next((e for e in reversed(self.events) if e["event"] == kind), None)

    @property
    def seconds(self) -> float:
        """The time spent in training, over all resumptions."""
        return float(sum(e["seconds"] for e in self.events if e["event"] == "epoch"))

    def holds(self, event: Event) -> bool:
        """Whether this event, or another of the same place in the run, is there already."""
        return _key(event) in self._starts

    def epochs_of(self, stage: str, number: int) -> int:
        """How many epochs of a stage are finished."""
        found = [e for e in self.events if (e.get("stage"), e.get("round")) == (stage, number)]
        return max((e["epoch"] for e in found if e["event"] == "epoch"), default=0)

    def append(self, event: Event) -> None:
        """Add an event, on disk when this returns."""
        key = _key(event)
        if key in self._starts:
            self._rewind(self._starts[key])
        line = (json.dumps(event) + "\n").encode()
        try:
            with open(self.path, "r+b" if self.path.exists() else "wb") as file:
                file.truncate(self._end)
                file.seek(self._end)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(
                f"'{self.path}' could not be written: {error.strerror}. The run is intact up to "
                "its last checkpoint: free some space and resume it."
            ) from error
        self._starts[key] = self._end
        self._end += len(line)
        self.events.append(event)

    def _rewind(self, start: int) -> None:
        self._starts = {key: at for key, at in self._starts.items() if at < start}
        self.events = self.events[: len(self._starts)]
        self._end = start


def _lines(path: Path) -> list[bytes]:
    """The whole lines of a file; half of one is left where a run was killed."""
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise RunError(f"'{path}' cannot be read: {error.strerror}.") from error
    return [line for line in lines if line.endswith(b"\n")]


def _parsed(path: Path, line: bytes) -> Event:
    try:
        event: Event = json.loads(line)
        event["event"]
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"'{path}' is damaged in the line {line[:40]!r}. Delete that line and those after it; "
            "the run repeats what they told."
        ) from error
    return event


def _key(event: Event) -> tuple[Any, ...]:
    return tuple(event.get(part) for part in _KEY)
