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

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rsprune.checks import check_count
from rsprune.errors import InvalidParameterError, TraceError
from rsprune.shadow import Arguments, bind, check_devices, check_model

_WARM_UP = 5  # runs that are not counted: memory, caches and kernels are chosen in them


@dataclass(frozen=True)
class Latency:
    """Seconds for one batch.

    Attributes:
        median: half of the runs were faster.
        low: a quarter of the runs were faster; with ``high``, the spread.
        high: three quarters of the runs were faster.
        runs: how many were measured.
    """

    median: float
    low: float
    high: float
    runs: int

    def __str__(self) -> str:
        low, median, high = (f"{1e3 * t:.3g}" for t in (self.low, self.median, self.high))
        return f"{median} ms (half of {self.runs} runs: {low} to {high} ms)"


def latency(
    models: Mapping[str, nn.Module],
    example_inputs: Any,
    *,
    runs: int = 50,
    threads: int | None = None,
) -> dict[str, Latency]:
    """Measure ``models`` on the same inputs, in evaluation mode and without gradients.

    Modes and the number of threads are restored.

    Args:
        models: the models by name; they take turns.
        example_inputs: a tensor; a tuple of positional arguments; a dict of keyword arguments.
        runs: how often each is measured.
        threads: how many to use; None leaves torch's present number.

    Raises:
        TraceError: if a model raises.
    """
    check_count("latency", "runs", runs, low=2)
    if threads is not None:
        check_count("latency", "threads", threads, low=1)
    if not models:
        raise InvalidParameterError("latency", "models", "at least one model", dict(models))
    calls = {}
    for name, model in models.items():
        check_model("latency", model)
        calls[name] = (model, bind("latency", model, example_inputs))
        check_devices("latency", *calls[name])
    times: dict[str, list[float]] = {name: [] for name in models}
    with ExitStack() as stack:
        stack.enter_context(_threads(threads))
        stack.enter_context(_no_collections())
        stack.enter_context(torch.inference_mode())
        for model in models.values():
            stack.enter_context(evaluating(model))
        for turn in range(_WARM_UP + runs):
            for name, (model, arguments) in calls.items():
                seconds = _time(name, model, arguments)
                if turn >= _WARM_UP:
                    times[name].append(seconds)
    return {name: _summary(seconds) for name, seconds in times.items()}


def _time(name: str, model: nn.Module, arguments: Arguments) -> float:
    args, kwargs = arguments
    device = next(x.device for x in tree_leaves(arguments) if isinstance(x, Tensor))
    try:
        start = time.perf_counter()
        model(*args, **kwargs)
        if device.type != "cpu":  # other devices are only told what to do
            torch.accelerator.synchronize(device)
        return time.perf_counter() - start
    except Exception as error:
        raise TraceError(f"The model '{name}' raised {type(error).__name__}: {error}") from error


def _summary(seconds: list[float]) -> Latency:
    low, median, high = quantiles(seconds, n=4, method="inclusive")
    return Latency(median, low, high, len(seconds))


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode; afterwards every module is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
