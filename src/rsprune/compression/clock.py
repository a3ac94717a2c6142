"""Times layers and whole models on this machine, in one of the runtimes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rsprune.compression.calls import Call
from rsprune.errors import ExportError
from rsprune.metrics.latency import take_turns
from rsprune.runtimes.batches import Inputs, tensors_of
from rsprune.runtimes.onnx import require_onnx, to_onnx
from rsprune.runtimes.program import capture
from rsprune.runtimes.ready import loaded, ready, torch_threads
from rsprune.runtimes.resize import resized
from rsprune.shadow import Arguments, as_inputs, named_tensors, replica
from rsprune.structure.groups import ChannelGraph

_LAYER = 0.01  # seconds of every measurement of a layer, after one run that does not count
_SLICE, _TURNS = 1.0, 7  # models take turns for so long, in seconds, and at least so often,
_SURE, _PATIENCE = 0.005, 20.0  # until this is the relative error, or so many seconds have passed
_ARRAYS = {torch.float64: np.float64, torch.float16: np.float16}  # onnxruntime's; else float32
_OPSET, _IR = 18, 10  # that every onnxruntime since 1.20 reads


class MachineClock:
    """Times the given model, cuts of it, and layers.

    Args:
        model: the given model.
        graph: of this model, with its example inputs.
        runtime: one of ``rsprune.runtimes.ready.RUNTIMES``.
        batch: the size of the batch that is timed.
        threads: how many the runtime uses; None is torch's present number.
    """

    def __init__(
        self, model: nn.Module, graph: ChannelGraph, runtime: str, batch: int, threads: int | None
    ) -> None:
        self._model, self._graph = model, graph
        self._runtime, self._batch, self._threads = runtime, batch, threads

    @cached_property
    def _full(self) -> nn.Module:
        """The given model in evaluation mode; its own mode is left alone."""
        return replica(self._model, named_tensors(self._model)).eval()

    @cached_property
    def _inputs(self) -> Inputs:
        return Inputs("plan_widths", self._full, as_inputs(self._graph.arguments))

    @cached_property
    def arguments(self) -> Arguments:
        """The batch that counts."""
        return self._inputs.of(self._batch)

    @cached_property
    def _file(self) -> bytes:
        """The given model as ONNX, with every tensor in it: equal ones would be stored once."""
        require_onnx()
        return to_onnx(capture(_shaken(self._full), self._inputs), self._inputs)

    @cached_property
    def _call(self) -> Callable[[], object]:
        if self._runtime == "onnxruntime":
            return loaded(self._file, self.arguments, self._threads)
        return ready(self._full, as_inputs(self.arguments), self._runtime, self._threads)

    def models(self, models: Sequence[nn.Module]) -> list[float]:
        """The seconds of the given model and of these, side by side.

        They take turns until the ratios are sure, or patience ends: longer on a busy machine.
        """
        with torch_threads(self._threads):
            calls = [self._call, *(self._prepared(model.eval()) for model in models)]
            named = {str(number): call for number, call in enumerate(calls)}
            turn = sum(map(_seconds, calls))
            turns = max(_TURNS, round(_SLICE / turn))
            start, found = time.perf_counter(), np.empty((len(calls), 0))
            while True:
                fresh = not found.size
                times = list(take_turns(named, turns, None, warm_up=fresh).values())
                found = np.concatenate([found, times], axis=1)  # (models, turns)
                ratios = np.log(found[1:] / found[0])
                if _uncertainty(ratios) < _SURE or time.perf_counter() - start > _PATIENCE:
                    break
        first = float(np.median(found[0]))
        return [first, *(first * np.exp(np.median(ratios, axis=1))).tolist()]

    def _prepared(self, slim: nn.Module) -> Callable[[], object]:
        if self._runtime == "onnxruntime":
            with suppress(ExportError):  # the file holds widths in other places than its weights
                data = resized(self._file, self._full, slim)
                call = loaded(data, self.arguments, self._threads)
                if _shapes(call()) == _shapes(self._call()):
                    return call  # else some images were taken for the missing channels of others
        return ready(slim, as_inputs(self.arguments), self._runtime, self._threads)

    def layer(self, call: Call, inputs: int, outputs: int) -> float:
        """The seconds of a call with these numbers of channels; the least of some runs."""
        with torch_threads(self._threads), torch.inference_mode():
            run = (
                self._onnx_layer(call, inputs, outputs)
                if self._runtime == "onnxruntime"
                else self._torch_layer(call, inputs, outputs)
            )
            run()
            times = [_seconds(run)]
            while sum(times) < _LAYER:
                times.append(_seconds(run))
        return min(times)

    def _torch_layer(self, call: Call, inputs: int, outputs: int) -> Callable[[], object]:
        device = tensors_of(self.arguments)[0].device

        def filled(*shape: int) -> Tensor:
            return torch.full(shape, 0.5, dtype=call.dtype, device=device)

        x, weight = (
            filled(call.batch, inputs, *call.image),
            filled(*call.weight_shape(inputs, outputs)),
        )

        def run() -> None:
            if call.kernel:
                torch.convolution(
                    x, weight, None, call.stride, call.padding, call.dilation, call.transposed,
                    call.output_padding, call.groups or inputs,
                )  # fmt: skip
            else:
                torch.nn.functional.linear(x, weight)
            if device.type != "cpu":  # other devices are only told what to do
                torch.accelerator.synchronize(device)

        return run

    def _onnx_layer(self, call: Call, inputs: int, outputs: int) -> Callable[[], object]:
        dtype = _ARRAYS.get(call.dtype, np.float32)
        x = np.full((call.batch, inputs, *call.image), 0.5, dtype)
        weight = np.full(call.weight_shape(inputs, outputs), 0.5, dtype)
        return loaded(_onnx_file(call, x, weight), ((torch.from_numpy(x),), {}), self._threads)


def _shaken(model: nn.Module) -> nn.Module:
    """A copy in which no two norms are alike, as those of fresh models are."""
    noise = torch.Generator().manual_seed(0)

    def shaken(tensor: Tensor) -> Tensor:
        if tensor.dim() != 1 or not tensor.is_floating_point():
            return tensor
        value = tensor.detach() + 0.01 * torch.rand(tensor.shape, generator=noise).to(tensor)
        return nn.Parameter(value, False) if isinstance(tensor, nn.Parameter) else value

    return replica(model, {name: shaken(t) for name, t in named_tensors(model).items()})


def _uncertainty(samples: npt.NDArray[np.float64]) -> float:
    """The standard error of the medians of rows, by their quartiles; of the worst row."""
    low, high = np.quantile(samples, (0.25, 0.75), axis=1)
    return float(np.max(high - low, initial=0.0)) * 0.93 / sqrt(samples.shape[1])


def _shapes(outputs: Any) -> list[tuple[int, ...]]:
    return [output.shape for output in outputs]


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _onnx_file(call: Call, x: Any, weight: Any) -> bytes:
    """An ONNX file with one convolution or matrix product."""
    onnx = import_module("onnx")
    options: dict[str, Any] = {"transB": 1}
    if call.kernel:
        options = {
            "strides": call.stride, "pads": call.padding * 2, "dilations": call.dilation,
            "group": call.groups or x.shape[1],
        }  # fmt: skip
        if call.transposed:
            options["output_padding"] = call.output_padding
    kind = ("ConvTranspose" if call.transposed else "Conv") if call.kernel else "Gemm"
    number = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(kind, ["x", "weight"], ["y"], **options)],
        "layer",
        [onnx.helper.make_tensor_value_info("x", number, x.shape)],
        [onnx.helper.make_tensor_value_info("y", number, None)],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    opsets = [onnx.helper.make_opsetid("", _OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=_IR)
    data: bytes = model.SerializeToString()
    return data
