"""Operators that torch's exporter does not know and ONNX can express."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Functions that write ONNX, by the operators they stand for."""
    return {torch.ops.aten.adaptive_max_pool2d.default: _adaptive_max_pool}


def _adaptive_max_pool(x: Any, output_size: Sequence[int]) -> tuple[Any, Any]:
    """As a plain pooling, where all windows are equally large and equally far apart."""
    from onnxscript import opset18

    windows = [_window(int(n), m) for n, m in zip(x.shape[-2:], output_size, strict=True)]
    kernel, strides = zip(*windows, strict=True)
    pooled, indices = opset18.MaxPool(x, kernel_shape=list(kernel), strides=list(strides))
    return pooled, indices


def _window(length: int, count: int) -> tuple[int, int]:
    """The length and distance of ``count`` windows over ``length`` places, as torch lays them."""
    begins = [i * length // count for i in range(count)]
    ends = [-(-(i + 1) * length // count) for i in range(count)]
    sizes = {end - begin for begin, end in zip(begins, ends, strict=True)}
    steps = {b - a for a, b in pairwise(begins)} or {1}
    if len(sizes) > 1 or len(steps) > 1:
        raise NotImplementedError(
            f"ONNX has no adaptive_max_pool2d, and from {length} to {count} its windows are not "
            "alike"
        )
    return sizes.pop(), steps.pop()
