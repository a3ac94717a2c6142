"""The ONNX file of a narrower model from that of the full one, for timing."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from torch import Tensor, nn

import rsprune
from rsprune.compression.clock import MachineClock
from rsprune.errors import ExportError
from rsprune.runtimes.batches import Inputs
from rsprune.runtimes.onnx import Session, to_onnx
from rsprune.runtimes.program import capture
from rsprune.runtimes.resize import resized

X = torch.randn(2, 3, 12, 12)


class Net(nn.Module):
    """Norms that become biases, a depthwise and a transposed convolution, a flattened end."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 3, groups=16)
        self.up = nn.ConvTranspose2d(16, 8, 2)
        self.scale = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)
        nn.init.normal_(self.norm.bias)
        nn.init.normal_(self.scale.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.norm(self.stem(x)).relu())
        x = self.scale(self.up(x)).relu()
        out: Tensor = self.head(x.mean((2, 3)).flatten(1))
        return out


class Shuffles(Net):
    """Holds a width in its code, which torch writes into the file."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        x = self.scale(self.up(self.depthwise(x)))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def converted(model: nn.Module) -> bytes:
    inputs = Inputs("test", model, X)
    return to_onnx(capture(model, inputs), inputs)


def halved(model: nn.Module) -> nn.Module:
    graph = rsprune.trace(model, X)
    drop = {group.name: range(group.size // 2, group.size) for group in graph.prunable}
    return rsprune.prune(model, graph, drop).eval()


def test_the_file_is_that_of_the_narrow_model_but_for_its_numbers() -> None:
    """The same operators on weights of the same shapes; it runs, for any batch."""
    model = Net().eval()
    slim = halved(model)
    assert slim.depthwise.groups == 8  # type: ignore[union-attr]
    load = import_module("onnx").load_from_string
    data = resized(converted(model), model, slim)
    quick, proper = load(data).graph, load(converted(slim)).graph
    assert [node.op_type for node in quick.node] == [node.op_type for node in proper.node]
    assert [t.dims for t in quick.initializer] == [t.dims for t in proper.initializer]
    assert [tuple(out.shape) for out in Session(data)(X[:1])] == [(1, 4)]


class Tokens(nn.Module):
    """Linear layers on tokens, whose weights torch writes transposed and under other names."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.wide = nn.Linear(8, 32, bias=False)
        self.narrow = nn.Linear(32, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.narrow(self.wide(self.stem(x).flatten(2).transpose(1, 2)).relu())
        return out


def test_weights_that_are_not_in_the_file_are_not_passed_over() -> None:
    """It would run, and be timed at its full width."""
    model = Tokens().eval()
    with pytest.raises(ExportError, match=r"does not hold wide\.weight"):
        resized(converted(model), model, halved(model))


def test_widths_in_other_places_are_noticed() -> None:
    """A file with them may run, with one image for two; what is timed is the converted model."""
    model = Shuffles().eval()
    slim = halved(model)
    with pytest.raises(ExportError):
        Session(resized(converted(model), model, slim))(X[:1])
    clock = MachineClock(model, rsprune.trace(model, X), "onnxruntime", batch=2, threads=1)
    (output,) = clock._prepared(slim)()  # type: ignore[misc]
    torch.testing.assert_close(torch.as_tensor(output), slim(X))
