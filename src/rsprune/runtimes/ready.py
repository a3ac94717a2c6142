"""A model made ready to run again and again: by torch, by ``torch.compile``, by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rsprune.checks import check_choice
from rsprune.errors import TraceError
from rsprune.runtimes.batches import Inputs, tensors_of
from rsprune.runtimes.onnx import Session, require_onnx, to_onnx
from rsprune.runtimes.program import capture, reason
from rsprune.runtimes.quiet import quiet
from rsprune.shadow import Arguments, explain

RUNTIMES = ("torch", "compile", "onnxruntime")

Call = Callable[[], object]


def ready(
    model: nn.Module, example_inputs: Any, runtime: str = "torch", threads: int | None = None
) -> Call:
    """``model`` in a runtime, as a function that runs it once and returns when it is done.

    Args:
        model: in evaluation mode, and to be left so.
        example_inputs: a tensor; a tuple of positional arguments; a dict of keyword arguments.
        runtime: one of ``RUNTIMES``.
        threads: how many onnxruntime uses, and for how many torch compiles; None is torch's
            present number. torch itself always runs with its present number: see
            ``torch_threads``.

    Raises:
        TraceError: if the model raises, or cannot be compiled.
        ExportError: if it cannot be converted for onnxruntime, or packages for that are missing.
    """
    check_runtime("ready", runtime)
    return Prepared("ready", model, example_inputs, runtime).call(threads=threads)


def check_runtime(owner: str, runtime: str) -> None:
    """Refuse a runtime that does not exist, or whose packages are missing."""
    check_choice(owner, "runtime", runtime, RUNTIMES)
    if runtime == "onnxruntime":
        require_onnx()


class Prepared:
    """A model in a runtime, from which functions for batches and threads are made.

    What does not depend on these, the conversion for onnxruntime, is done once.

    Args:
        owner: whose parameters these are, for errors.
        model: in evaluation mode, and to be left so.
        example_inputs: a tensor; a tuple of positional arguments; a dict of keyword arguments.
        runtime: that :func:`check_runtime` accepts.
    """

    def __init__(self, owner: str, model: nn.Module, example_inputs: Any, runtime: str) -> None:
        self.model, self.runtime = model, runtime
        self._inputs = Inputs(owner, model, example_inputs)
        self._onnx = b""
        if runtime == "onnxruntime":
            self._check(self._inputs.arguments)
            self._onnx = to_onnx(capture(model, self._inputs), self._inputs)

    def call(
        self, batch: int | None = None, threads: int | None = None, *, arena: bool = True
    ) -> Call:
        """A function that runs the model once and returns when it is done.

        Args:
            batch: how many inputs, the example's repeated; None is as many as it has.
            threads: as for ``ready``.
            arena: as for ``Session``.
        """
        arguments = self._inputs.of(self._inputs.batch if batch is None else batch)
        threads = torch.get_num_threads() if threads is None else threads
        if self.runtime == "onnxruntime":
            return loaded(self._onnx, arguments, threads, arena=arena)
        with torch_threads(threads):
            self._check(arguments)
            if self.runtime == "compile":
                return self._compiled(arguments)
            return _calling(self.model, arguments)

    def _check(self, arguments: Arguments) -> None:
        """Run the model as it is: what it raises is its own fault and no runtime's."""
        try:
            _calling(self.model, arguments)()
        except Exception as error:
            raise TraceError(explain(error, self.model, arguments)) from error

    def _compiled(self, arguments: Arguments) -> Call:
        """Compiled for these shapes alone, whatever else is compiled from the same code."""
        settings: dict[str, Any] = {"dynamic": False, "isolate_recompiles": True}
        call = _calling(torch.compile(self.model, **settings), arguments)
        try:
            with quiet():
                call()
        except Exception as error:
            raise TraceError(
                f"torch.compile failed: {reason(error)}. It needs a C++ compiler, such as g++, and "
                "Python's headers (on Debian and Ubuntu: apt-get install g++ python3-dev); or "
                "choose another runtime."
            ) from error
        return call


def loaded(data: bytes, arguments: Arguments, threads: int | None, *, arena: bool = True) -> Call:
    """An ONNX file in onnxruntime, which has run once, as a function that runs it again.

    Args:
        data: the file.
        arguments: of the model in it.
        threads: how many to use; None is torch's present number.
        arena: as for ``Session``.
    """
    session = Session(data, threads=threads or torch.get_num_threads(), arena=arena)
    args, kwargs = arguments
    feed = session.feed(*args, **kwargs)
    session.run(feed)
    return lambda: session.run(feed)


def _calling(function: Callable[..., object], arguments: Arguments) -> Call:
    args, kwargs = arguments
    device = tensors_of(arguments)[0].device

    def call() -> object:
        with torch.inference_mode():
            output = function(*args, **kwargs)
        if device.type != "cpu":  # other devices are only told what to do
            torch.accelerator.synchronize(device)
        return output

    return call


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """With so many threads in torch; None leaves the present number."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
