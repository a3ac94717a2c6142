"""How long models take for one batch, measured side by side.

The models take turns, so that whatever else the machine does meanwhile slows all of them alike.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

from torch import nn

from rsprune.checks import check_count, check_number
from rsprune.errors import ExportError, InvalidParameterError, TraceError
from rsprune.metrics.memory import added_by
from rsprune.runtimes.ready import Call, Prepared, check_runtime, torch_threads
from rsprune.shadow import check_model, evaluating, named_tensors

_WARM_UP = 5  # runs that are not counted: memory, caches and kernels are chosen in them
_FEWEST = 3  # runs that are counted, however long they take


@dataclass(frozen=True)
class Latency:
    """Seconds for one batch.

    Attributes:
        median: half of the runs were faster.
        low: a quarter of the runs were faster; with ``high``, the spread.
        high: three quarters of the runs were faster.
        runs: how many were measured.
        memory: bytes of the weights, and of what one run adds to the process at its peak; None
            where that was not asked for or cannot be measured.
    """

    median: float
    low: float
    high: float
    runs: int
    memory: int | None = None

    def __str__(self) -> str:
        low, median, high = (f"{1e3 * t:.3g}" for t in (self.low, self.median, self.high))
        return f"{median} ms (half of {self.runs} runs: {low} to {high} ms)"


def latency(
    models: Mapping[str, nn.Module],
    example_inputs: Any,
    *,
    runtime: str = "torch",
    batch: int | None = None,
    threads: int | None = None,
    runs: int = 50,
    seconds: float | None = None,
    memory: bool = False,
) -> dict[str, Latency]:
    """Measure ``models`` on the same inputs, in evaluation mode and without gradients.

    Modes and the number of threads are restored.

    Args:
        models: the models by name; they take turns.
        example_inputs: a tensor; a tuple of positional arguments; a dict of keyword arguments.
        runtime: "torch", "compile" (``torch.compile``) or "onnxruntime".
        batch: how many inputs, the example's repeated; None is as many as it has.
        threads: how many to use; None is torch's present number.
        runs: how often each is measured.
        seconds: after so many, no further turn begins, so that there are fewer runs where they are
            slow, but at least 3. Conversion, compilation and first runs come on top.
        memory: measure the memory too, in a run of its own.

    Raises:
        TraceError: if a model raises, or cannot be compiled.
        ExportError: if it cannot be converted for onnxruntime, or packages for that are missing.
    """
    check_extent("latency", runs, seconds)
    for name, count in (("batch", batch), ("threads", threads)):
        if count is not None:
            check_count("latency", name, count, low=1)
    with prepared("latency", models, example_inputs, runtime) as programs:
        return measure(programs, batch, threads, runs=runs, seconds=seconds, memory=memory)


def check_extent(owner: str, runs: int, seconds: float | None) -> None:
    """Refuse too few runs, or no time for them."""
    check_count(owner, "runs", runs, low=2)
    if seconds is not None:
        check_number(owner, "seconds", seconds, low=0, open_low=True)


@contextmanager
def prepared(
    owner: str, models: Mapping[str, nn.Module], example_inputs: Any, runtime: str
) -> Iterator[dict[str, Prepared]]:
    """The models in a runtime, by name, and in evaluation mode meanwhile."""
    if not isinstance(models, Mapping) or not models:
        kind = "nothing" if isinstance(models, Mapping) else type(models).__name__
        raise InvalidParameterError(
            owner, "models", "models by name, at least one", kind, 'E.g. {"mine": model}.'
        )
    for model in models.values():
        check_model(owner, model)
    check_runtime(owner, runtime)
    with ExitStack() as stack:
        for model in models.values():
            stack.enter_context(evaluating(model))
        programs = {}
        for name, model in models.items():
            with _naming(name):
                programs[name] = Prepared(owner, model, example_inputs, runtime)
        yield programs


def measure(
    programs: Mapping[str, Prepared],
    batch: int | None,
    threads: int | None,
    *,
    runs: int,
    seconds: float | None,
    memory: bool,
) -> dict[str, Latency]:
    """Measure what ``prepared`` made, with the parameters of ``latency``."""
    calls: dict[str, Call] = {}
    with torch_threads(threads):
        for name, program in programs.items():
            with _naming(name):
                calls[name] = program.call(batch, threads)
        times = take_turns(calls, runs, seconds)
        sizes: dict[str, int | None] = dict.fromkeys(calls)
        if memory:
            for name, program in programs.items():
                lean = program.runtime == "onnxruntime"  # which else holds memory in reserve
                call = program.call(batch, threads, arena=False) if lean else calls[name]
                sizes[name] = _memory(program.model, call)
    return {name: _summary(times[name], sizes[name]) for name in calls}


def take_turns(
    calls: Mapping[str, Call], runs: int, seconds: float | None, *, warm_up: bool = True
) -> dict[str, list[float]]:
    """The seconds of every run of functions that take turns, after some that do not count."""
    limit = float("inf") if seconds is None else seconds
    with _no_collections():
        start = time.perf_counter()
        for _ in range(_WARM_UP if warm_up else 0):
            for call in calls.values():
                call()
            if time.perf_counter() - start > limit / 4:
                break
        times: dict[str, list[float]] = {name: [] for name in calls}
        start = time.perf_counter()
        for turn in range(runs):
            if turn >= _FEWEST and time.perf_counter() - start > limit:
                break
            for name, call in calls.items():
                begin = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - begin)
    return times


def _memory(model: nn.Module, call: Call) -> int | None:
    """The bytes of the weights, and those that one run adds; None on other devices."""
    tensors = named_tensors(model).values()
    added = added_by(call) if all(t.device.type == "cpu" for t in tensors) else None
    return None if added is None else added + sum(t.numel() * t.element_size() for t in tensors)


def _summary(seconds: list[float], memory: int | None = None) -> Latency:
    low, median, high = quantiles(seconds, n=4, method="inclusive")
    return Latency(median, low, high, len(seconds), memory)


@contextmanager
def _naming(model: str) -> Iterator[None]:
    """Errors say which model it was."""
    try:
        yield
    except (ExportError, TraceError) as error:
        raise type(error)(f"The model '{model}' cannot be measured. {error}") from error


@contextmanager
def _no_collections() -> Iterator[None]:
    """Without Python's garbage collector, which strikes one run in many."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
