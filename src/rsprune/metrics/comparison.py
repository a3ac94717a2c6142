"""``compare_latency``: a model before and after compression, in every runtime and at every size.

Fewer multiply-accumulates are seldom proportionally less time; how much of the one becomes the
other is the efficiency of a row: the measured speed-up divided by the ratio of the MACs.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rsprune.checks import check_choice, check_count
from rsprune.columns import aligned
from rsprune.errors import ExportError, FileFormatError, InvalidParameterError, TraceError
from rsprune.files import write_atomic
from rsprune.metrics.latency import Latency, check_extent, measure, prepared
from rsprune.metrics.macs import profile
from rsprune.ratios import compared
from rsprune.runtimes.ready import RUNTIMES

BATCHES = (1, 8, 64)
SECONDS = 2.0  # for the counted runs of a row
_OWNER = "compare_latency"
_ORIGINAL, _COMPRESSED = "original", "compressed"

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class LatencyRow:
    """Both models in one runtime, at one batch size and number of threads.

    Attributes:
        runtime: "torch", "compile" or "onnxruntime".
        batch: inputs in a batch.
        threads: how many were used.
        original: seconds for a batch, and memory.
        compressed: the same of the other model.
        speedup: how many times faster the compressed one is, by medians.
        efficiency: the speed-up, as a part of the ratio of multiply-accumulates.
    """

    runtime: str
    batch: int
    threads: int
    original: Latency
    compressed: Latency
    speedup: float
    efficiency: float


@dataclass(frozen=True)
class LatencyComparison:
    """What was measured; ``print`` shows it as a table.

    Attributes:
        macs: the multiply-accumulates of the original, as a multiple of the compressed one's.
        rows: one for every runtime, batch size and number of threads.
        left_out: why a runtime was left out, by its name.
        machine: processor, versions and time.
    """

    macs: float
    rows: tuple[LatencyRow, ...]
    left_out: Mapping[str, str]
    machine: Mapping[str, str]

    def __str__(self) -> str:
        heads = ("runtime", "batch", "threads", _ORIGINAL, _COMPRESSED, "speed-up", "efficiency")
        lines = [
            (
                row.runtime, str(row.batch), str(row.threads),
                *(f"{1e3 * side.median:.3g} ms" for side in (row.original, row.compressed)),
                f"{row.speedup:.2f}x", f"{row.efficiency:.2f}",
            )
            for row in self.rows
        ]  # fmt: skip
        table = aligned([heads, *lines], right=range(1, len(heads)))
        notes = [f"{name} was left out: {reason}" for name, reason in self.left_out.items()]
        return "\n".join([table, compared(self.macs, 1, "fewer MACs"), *notes])

    @property
    def first_rows(self) -> list[LatencyRow]:
        """Every runtime at its smallest batch and, there, with most threads."""
        found: dict[str, LatencyRow] = {}
        for row in sorted(self.rows, key=lambda row: (row.batch, -row.threads)):
            found.setdefault(row.runtime, row)
        return list(found.values())

    def with_rows_of(self, older: LatencyComparison) -> LatencyComparison:
        """Also what was measured before, of the same models on the same machine."""

        def places(found: LatencyComparison) -> dict[tuple[str, int, int], LatencyRow]:
            return {(row.runtime, row.batch, row.threads): row for row in found.rows}

        same = all(older.machine.get(key) == self.machine[key] for key in ("cpu", "torch"))
        if not same or older.macs != self.macs:
            return self
        kept = {p: row for p, row in places(older).items() if row.runtime not in self.left_out}
        rows = {**kept, **places(self)}
        known = sorted(rows, key=lambda place: ([*RUNTIMES, place[0]].index(place[0]), *place[1:]))
        return replace(self, rows=tuple(rows[place] for place in known))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write all of it as JSON, whole or not at all."""
        write_atomic(path, json.dumps(asdict(self), indent=1) + "\n")


def compare_latency(
    original: nn.Module,
    compressed: nn.Module,
    example_inputs: Any,
    *,
    runtimes: Sequence[str] = RUNTIMES,
    strict: bool = False,
    batches: Sequence[int] = BATCHES,
    threads: Sequence[int] | None = None,
    runs: int = 50,
    seconds: float = SECONDS,
    on_progress: Progress | None = None,
) -> LatencyComparison:
    """Measure two models side by side in every runtime, batch size and number of threads.

    Args:
        original: the model as it was.
        compressed: the model it became.
        example_inputs: a tensor; a tuple of positional arguments; a dict of keyword arguments.
        runtimes: of "torch", "compile" (``torch.compile``) and "onnxruntime".
        strict: raise where a runtime does not work here, instead of leaving it out; without torch
            there is nothing to compare with, so that it is never left out.
        batches: how many inputs, the example's repeated.
        threads: how many to use; None is one, and as many as torch uses at present.
        runs: how often each model is measured for a row.
        seconds: after so many, a row is finished with fewer runs; at least 3.
        on_progress: is told how many rows are done, of how many, and which one begins.

    Raises:
        TraceError: if a model raises, or (strict) cannot be compiled.
        ExportError: (strict) if it cannot be converted for onnxruntime; if no runtime works.
    """
    counts = (1, torch.get_num_threads()) if threads is None else threads
    _check(runtimes, batches, counts)
    wanted = tuple(dict.fromkeys(runtimes))
    places = [(b, t) for b in dict.fromkeys(batches) for t in dict.fromkeys(counts)]
    check_extent(_OWNER, runs, seconds)
    models = {_ORIGINAL: original, _COMPRESSED: compressed}
    macs = [profile(model, example_inputs).macs for model in models.values()]
    ratio = macs[0] / max(1, macs[1])
    rows: list[LatencyRow] = []
    left_out: dict[str, str] = {}
    for index, runtime in enumerate(wanted):
        done, total = index * len(places), len(wanted) * len(places)
        tolerated = not strict and runtime != "torch"
        tell = on_progress or (lambda *_: None)
        with _leaving_out(runtime, left_out if tolerated else None):
            tell(done, total, f"{runtime}: preparing")
            own = []
            with prepared(_OWNER, models, example_inputs, runtime) as programs:
                for number, (batch, count) in enumerate(places):
                    tell(done + number, total, f"{runtime}, batch {batch}, {_threads(count)}")
                    found = measure(programs, batch, count, runs=runs, seconds=seconds, memory=True)
                    own.append(_row(runtime, batch, count, found, ratio))
            rows += own
        tell(done + len(places), total, runtime)
    if not rows:
        raise ExportError(" ".join(left_out.values()))
    return LatencyComparison(ratio, tuple(rows), left_out, _machine())


def read_comparison(path: str | os.PathLike[str]) -> LatencyComparison:
    """What :meth:`LatencyComparison.write` wrote.

    Raises:
        FileFormatError: if it is something else.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        rows = (
            LatencyRow(
                **{
                    **row,
                    _ORIGINAL: Latency(**row[_ORIGINAL]),
                    _COMPRESSED: Latency(**row[_COMPRESSED]),
                }
            )
            for row in found["rows"] or [{}]  # at least one
        )
        return LatencyComparison(**{**found, "rows": tuple(rows)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(
            f"'{path}' is not as rsprune latency writes it: {error}. Delete it, or measure again."
        ) from error


def _check(runtimes: Sequence[str], batches: Sequence[int], threads: Sequence[int]) -> None:
    """Refuse what would only be refused after the first rows."""
    for name, values in (("runtimes", runtimes), ("batches", batches), ("threads", threads)):
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InvalidParameterError(
                _OWNER, name, "a list of at least one", values, "E.g. batches=[1, 8]."
            )
    for runtime in runtimes:
        check_choice(_OWNER, "runtimes", runtime, RUNTIMES)
    for name, counts in (("batches", batches), ("threads", threads)):
        for count in counts:
            check_count(_OWNER, name, count, low=1)


def _row(
    runtime: str, batch: int, threads: int, found: Mapping[str, Latency], macs: float
) -> LatencyRow:
    before, after = found[_ORIGINAL], found[_COMPRESSED]
    speedup = before.median / after.median
    return LatencyRow(runtime, batch, threads, before, after, speedup, speedup / macs)


@contextmanager
def _leaving_out(runtime: str, reasons: dict[str, str] | None) -> Iterator[None]:
    """Note why a runtime does not work, instead of raising, where there is a place for it."""
    try:
        yield
    except (ExportError, TraceError) as error:
        if reasons is None:
            raise
        reasons[runtime] = str(error)


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def _machine() -> dict[str, str]:
    """Where and with what it was measured."""
    return {
        "cpu": processor_name(),
        "torch": torch.__version__,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def processor_name() -> str:
    """The processor's name, which Python itself does not know on Linux."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
