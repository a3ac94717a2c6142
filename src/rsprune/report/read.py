"""A run as its ``events.jsonl`` tells it, finished or not, with its ``latency.json``.

A run that was killed may end in half a line, and files that were put together may tell an epoch or
a round twice: half lines are left out and counted, and what was told last holds.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from rsprune.errors import RunError
from rsprune.metrics.comparison import read_comparison
from rsprune.report.run import (
    Cost,
    Epoch,
    Finish,
    LayerChange,
    Outcome,
    Round,
    Run,
    Start,
    Width,
)

EVENTS, LATENCY = "events.jsonl", "latency.json"


def read_run(directory: Path) -> Run:
    """The run in ``directory``.

    Raises:
        RunError: if there is no run, or its events are not those of a run.
        FileFormatError: if its latency.json is damaged.
    """
    path = directory / EVENTS
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunError(
            f"'{directory}' is not the directory of a run: its {EVENTS} could not be read "
            f"({error.strerror}). Give the directory that rsprune compress --out wrote."
        ) from error
    events, unreadable = _parse(text)
    try:
        run = _collect(events, unreadable)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise RunError(f"'{path}' is not as rsprune writes it: an event {what}.") from error
    measured = directory / LATENCY
    return replace(run, latency=read_comparison(measured)) if measured.exists() else run


def _parse(text: str) -> tuple[list[dict[str, Any]], int]:
    events, unreadable = [], 0
    for line in filter(str.strip, text.split("\n")):
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, dict):
            events.append(_finite(event))
        else:
            unreadable += 1
    return events, unreadable


def _finite(value: Any) -> Any:
    """NaN and infinity, as a diverged loss has them, as None: JSON has no word for them."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _collect(events: list[dict[str, Any]], unreadable: int) -> Run:
    def of(kind: str) -> list[dict[str, Any]]:
        return [event for event in events if event.get("event") == kind]

    if not (starts := of("start")):
        raise ValueError("with the name 'start' is missing: the run has not begun")
    lams = {(e["stage"], e["round"]): e.get("lam") for e in of("stage")}
    epochs = {(e["stage"], e["round"], e["epoch"]): e for e in of("epoch")}
    rounds = {e["round"]: e for e in of("round")}
    baseline, finish = of("baseline")[-1:], of("finish")[-1:]
    return Run(
        start=_start(starts[0]),
        epochs=tuple(_epoch(e, lams.get((e["stage"], e["round"]))) for e in epochs.values()),
        baseline=_outcome(baseline[0]) if baseline else None,
        rounds=tuple(_round(rounds[number]) for number in sorted(rounds)),
        finetuned={e["round"]: e["accuracy"] for e in of("finetuned")},
        finish=_finish(finish[0]) if finish else None,
        unreadable=unreadable,
    )


def _start(event: dict[str, Any]) -> Start:
    return Start(
        time=event["time"],
        version=event["version"],
        model=event["model"],
        data=event["data"],
        classes=event.get("classes"),
        input_shape=tuple(event["input_shape"]),
        sizes=event.get("sizes") or {},
        recipe=event.get("recipe") or {},
        environment=event.get("environment") or {},
        weights_sha256=event.get("weights_sha256"),
    )


def _epoch(event: dict[str, Any], lam: float | None) -> Epoch:
    return Epoch(
        stage=event["stage"],
        round=event["round"],
        epoch=event["epoch"],
        epochs=event["epochs"],
        loss=event["loss"],
        accuracy=event.get("accuracy"),
        validation_accuracy=event.get("validation_accuracy"),
        lr=event.get("lr"),
        phase=event.get("phase"),
        sparsity=event.get("sparsity"),
        layers=event.get("layers") or {},
        seconds=event.get("seconds"),
        lam=lam,
    )


def _round(event: dict[str, Any]) -> Round:
    widths = (
        Width(w["group"], w["from"], w["to"], w.get("sparsity"), w.get("driver") or "")
        for w in event.get("widths") or ()
    )
    return Round(
        round=event["round"],
        lam=event["lam"],
        sparsity=event["sparsity"],
        accuracy=event["accuracy"],
        before=_cost(event["before"]),
        after=_cost(event["after"]) if event.get("after") else None,
        widths=tuple(widths),
        by_cost=event.get("spread") == "cost",
    )


def _finish(event: dict[str, Any]) -> Finish:
    layers = (
        LayerChange(
            layer["name"],
            tuple(layer["before"]["shape"]),
            tuple(layer["after"]["shape"]),
            layer["before"]["macs"],
            layer["after"]["macs"],
        )
        for layer in event.get("layers") or ()
    )
    return Finish(
        stopped=event["stopped"].removesuffix("."),
        seconds=event.get("seconds"),
        before=_outcome(event["before"]),
        after=_outcome(event["after"]),
        layers=tuple(layers),
    )


def _cost(event: dict[str, Any]) -> Cost:
    return Cost(event["macs"], event["weights"], event["params"])


def _outcome(event: dict[str, Any]) -> Outcome:
    return Outcome(
        cost=_cost(event),
        validation_accuracy=event.get("validation_accuracy"),
        test_accuracy=event.get("test_accuracy"),
        latency=event.get("latency"),
        validation_top5=event.get("validation_top5"),
        test_top5=event.get("test_top5"),
    )
