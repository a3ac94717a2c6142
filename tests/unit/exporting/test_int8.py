"""Quantised files: as accurate as the model on its data, and refused when they are broken."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rsprune
from rsprune.data import Data, load
from rsprune.errors import ExportError, InvalidParameterError
from rsprune.models import build

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def digits() -> Data:
    return load("digits", seed=0)


@pytest.fixture(scope="module")
def trained(digits: Data) -> nn.Module:
    """A small CNN that knows digits."""
    torch.manual_seed(0)
    model = build("small_cnn", classes=10, channels=1, width=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(5):
        for images, labels in digits.train.epoch(64, seed=0, epoch=epoch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    return model


def test_a_quantised_network_loses_at_most_a_point(
    trained: nn.Module, digits: Data, tmp_path: Path
) -> None:
    """Calibrated with training images, measured on test images, and a third of the size.

    Logging stays as it is: onnxruntime's tools log to the root, which configures it for good.
    """
    images, labels = next(iter(digits.test.in_order(len(digits.test))))
    batches = [x for x, _ in islice(digits.train.epoch(32, seed=0, epoch=0), 8)]

    def evaluate(run: Callable[..., Any]) -> float:
        return (run(images).argmax(1) == labels).double().mean().item()

    handlers, level = list(logging.root.handlers), logging.root.level
    small = rsprune.export(
        trained, images[:2], tmp_path / "small.onnx", int8=batches, evaluate=evaluate
    )
    assert (logging.root.handlers, logging.root.level) == (handlers, level)
    assert small.accuracy is not None
    before, after = small.accuracy
    assert f"accuracy {before:.2%} before and {after:.2%} after" in str(small)
    assert before >= 0.95
    assert after >= before - 0.01
    assert small.agreement is not None
    assert small.agreement >= 0.98
    assert 1e-4 < small.difference < 0.1
    assert small.folded == 3
    assert small.size < 0.4 * 4 * sum(p.numel() for p in trained.parameters())
    proto = onnx.load(str(small.path))
    assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in proto.graph.node}
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    texts = {entry.key: entry.value for entry in proto.metadata_props}
    assert (texts["precision"], float(texts["test_accuracy"])) == ("int8", after)


def test_no_calibration_data(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"no calibration data.*Nothing was written"):
        rsprune.export(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "a.onnx", int8=[])
    assert list(tmp_path.iterdir()) == []


def test_a_loader_with_labels_is_refused(tmp_path: Path) -> None:
    """DataLoaders give lists, which models take for one input."""
    model, x = nn.Linear(2, 2), torch.zeros(1, 2)
    with pytest.raises(
        InvalidParameterError, match=r"'int8'.*'2 and one number'.*images, _ in loader"
    ):
        rsprune.export(model, x, tmp_path / "a.onnx", int8=[[x, torch.zeros(1)]])


def test_a_broken_quantisation_is_refused(tmp_path: Path) -> None:
    """Calibrated with an input a million times as large, it takes all others for zero."""
    x = torch.tensor([[[0.5]], [[1.0]]])
    model = nn.Sequential(nn.Conv1d(1, 1, 1, bias=False), nn.Flatten())
    with pytest.raises(ExportError, match=r"do not depend on the input.*Nothing was written"):
        rsprune.export(model, x, tmp_path / "a.onnx", int8=[1e6 * x])
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_quantised_is_refused(tmp_path: Path) -> None:
    """onnxruntime leaves double precision as it is, and says nothing."""
    model, x = nn.Linear(2, 2).double(), torch.rand(2, 2, dtype=torch.float64)
    with pytest.raises(ExportError, match=r"nothing to quantise.*single precision"):
        rsprune.export(model, x, tmp_path / "a.onnx", int8=[x])
