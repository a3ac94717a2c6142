"""Operators that torch's exporter does not know, as ONNX has them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rsprune.runtimes.batches import Inputs
from rsprune.runtimes.lowerings import _window
from rsprune.runtimes.onnx import Session, to_onnx
from rsprune.runtimes.program import capture

for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package)


def test_adaptive_max_pooling_is_a_pooling_where_all_windows_are_alike() -> None:
    """For every length and count: torch's own pooling agrees, or the windows are refused."""
    alike = 0
    for length in range(1, 20):
        x = torch.randn(1, 1, length)
        for count in range(1, length + 1):
            try:
                kernel, stride = _window(length, count)
            except NotImplementedError:
                continue
            alike += 1
            assert torch.equal(F.max_pool1d(x, kernel, stride), F.adaptive_max_pool1d(x, count))
    assert alike > 80


def test_it_runs_in_onnxruntime() -> None:
    """Seven places go to two, as they do for Fashion-MNIST."""
    model = nn.AdaptiveMaxPool2d(2).eval()
    inputs = Inputs("test", model, torch.randn(2, 4, 7, 7))
    session = Session(to_onnx(capture(model, inputs), inputs))
    args, _ = inputs.of(5)
    assert torch.equal(session(*args)[0], model(*args))
