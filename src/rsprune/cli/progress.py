"""How a run is shown: a bar on a terminal, a line an epoch elsewhere; and how it is stopped."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from rsprune.ratios import compared

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_WIDE = 10_000  # columns; output to a file or a pipe is never folded


def make_console(*, stderr: bool = False) -> Console:
    """A console for tables and lines."""
    console = Console(stderr=stderr, emoji=False, markup=False, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    return console


class Display:
    """Shows the events and steps of a run.

    The first Ctrl-C asks the run to save its state and stop; the second stops it at once.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stopping = False
        self._stage: dict[str, Any] = {}
        self._zeros = ""
        self._task: TaskID | None = None
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            disable=not console.is_terminal,
        )

    @property
    def stopping(self) -> bool:
        """Whether the user asked the run to stop."""
        return self._stopping

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show what happens inside, and listen for Ctrl-C."""
        before = {one: signal.signal(one, self._interrupt) for one in _SIGNALS}
        try:
            with self._bar:
                yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self._stopping:
            raise KeyboardInterrupt
        self._stopping = True
        self._console.print("Stopping after this step; press Ctrl-C again to stop at once.")

    def event(self, event: dict[str, Any]) -> None:
        """Show an event."""
        kind = event["event"]
        if kind == "stage":
            self._begin(event)
        elif kind == "epoch":
            self._finish_epoch(event)
        elif kind == "baseline":
            self._say(f"baseline: validation accuracy {event['validation_accuracy']:.2%}")
        elif kind == "round":
            self._say(_round_line(event))

    def step(self, done: int, total: int, loss: float, accuracy: float) -> None:
        """Show a step within an epoch."""
        epoch = self._stage["epoch"]
        status = f"epoch {epoch + 1}/{self._stage['epochs']}  loss {loss:.3f}  {accuracy:.1%}"
        self._update(epoch + done / total, f"{status}{self._zeros}")

    def _begin(self, event: dict[str, Any]) -> None:
        self._stage = {**event, "epoch": event["done"]}
        self._zeros = ""
        name = event["stage"]
        if event["lam"] is not None:
            name += f" {event['round'] + 1}, lambda {event['lam']:.2g}"
        self._task = self._bar.add_task(
            name, total=event["epochs"], completed=event["done"],
            status="compiling, which takes a while" if event["compiles"] else "",
        )  # fmt: skip
        if not self._console.is_terminal:
            done = f", {event['done']} done" if event["done"] else ""
            first = "; compiling first, which takes a while" if event["compiles"] else ""
            self._say(f"{name}, {event['epochs']} epoch{'s' * (event['epochs'] != 1)}{done}{first}")

    def _finish_epoch(self, event: dict[str, Any]) -> None:
        self._stage["epoch"] = event["epoch"]
        self._zeros = f"  {event['sparsity']:.1%} zero" if event["stage"] == "explore" else ""
        if event["phase"]:
            self._zeros += f"  {event['phase']}"
        status = (
            f"epoch {event['epoch']}/{event['epochs']}  loss {event['loss']:.3f}  "
            f"validation {event['validation_accuracy']:.2%}{self._zeros}"
        )
        self._update(event["epoch"], status)
        if not self._console.is_terminal:
            self._say(f"  {status}  {event['seconds']:.1f} s")

    def _update(self, completed: float, status: str) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=completed, status=status)

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def _round_line(event: dict[str, Any]) -> str:
    start = f"round {event['round'] + 1}: "
    if event["accuracy"] is None:
        return f"{start}diverged"
    line = f"{start}{event['sparsity']:.1%} zero, validation accuracy {event['accuracy']:.2%}"
    if event["after"] is None:
        return line
    before, after = event["before"]["macs"], event["after"]["macs"]
    than = " than before it" if event["round"] else ""
    return f"{line}; cut to {after:,} MACs, {compared(before, after)}{than}"
