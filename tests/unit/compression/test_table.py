"""Every multiplication with a weight is found, and its time interpolated between measurements."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rsprune
from rsprune.compression import clock as clocks
from rsprune.compression.calls import Call, find_uses
from rsprune.compression.clock import MachineClock
from rsprune.compression.cost import Costs
from rsprune.compression.table import Table
from tests.unit.compression.clocks import PaperClock, seconds
from tests.unit.compression.networks import IMAGE


class Kinds(nn.Module):
    """One layer of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(16, 32, 3, groups=16, padding=1)
        self.grouped = nn.Conv2d(32, 16, 1, groups=4)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2, output_padding=1)
        self.line = nn.Conv1d(8, 12, 5)
        self.tokens = nn.Linear(12, 10)
        self.attention = nn.MultiheadAttention(10, 2, batch_first=True)
        self.matrix = nn.Parameter(torch.randn(10, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(self.grouped(self.depthwise(self.plain(x))))
        x = self.tokens(self.line(x.flatten(2)).transpose(1, 2))
        x = self.attention(x, x, x, need_weights=False)[0]
        out: Tensor = x @ self.matrix
        return out


def test_every_kind_of_layer_is_found_with_its_channels() -> None:
    """Convolutions, grouped and transposed ones, products on sequences, a bare parameter."""
    model = Kinds().eval()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    found = {
        use.parameter: (
            shapes[use.parameter][use.inputs.dim] * use.inputs.times,
            shapes[use.parameter][use.outputs.dim] * use.outputs.times,
        )
        for use in find_uses(model, ((IMAGE,), {}), real=False)
    }
    assert found == {
        "plain.weight": (3, 16), "depthwise.weight": (16, 32), "grouped.weight": (32, 16),
        "up.weight": (16, 8), "line.weight": (8, 12), "tokens.weight": (12, 10),
        "attention.in_proj_weight": (10, 30), "attention.out_proj.weight": (10, 10),
        "matrix": (10, 6),
    }  # fmt: skip


def test_the_calls_are_those_of_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run alone, by torch and by onnxruntime, they give outputs of the layers' sizes."""
    monkeypatch.setattr(clocks, "_LAYER", 0.0)
    model = Kinds().eval()
    graph, uses = rsprune.trace(model, IMAGE), find_uses(model, ((IMAGE,), {}), real=False)
    sizes: list[int] = []
    for name in ("plain", "depthwise", "grouped", "up", "line", "tokens"):
        model.get_submodule(name).register_forward_hook(
            lambda _module, _args, out: sizes.append(out.numel())
        )
    with torch.no_grad():
        model(IMAGE)
    channels = ((3, 16), (16, 32), (32, 16), (16, 8), (8, 12), (12, 10))
    for runtime in ("torch", "onnxruntime"):
        clock = MachineClock(model, graph, runtime, 2, 1)
        for use, size, (inputs, outputs) in zip(uses[:6], sizes, channels, strict=True):
            assert use.outputs.elements * outputs == size
            assert clock.layer(use.call, inputs, outputs) > 0
            if runtime == "onnxruntime":
                out = clock._onnx_layer(use.call, inputs, outputs)()
                assert out[0].size == size  # type: ignore[index]


def table_of(model: nn.Module, x: Tensor) -> tuple[Table, Costs, PaperClock]:
    costs, clock = Costs(model, rsprune.trace(model, x)), PaperClock(model, x)
    uses = find_uses(model, ((x,), {}), real=False)
    rows = [name for name, _ in model.named_parameters()]
    least = np.maximum(1, costs.sizes // 10)
    table = Table(
        uses, [rows.index(use.parameter) for use in uses], costs.shapes(costs.sizes),
        costs.shapes(least), clock,
    )  # fmt: skip
    return table, costs, clock


def test_interpolation_is_exact_for_products_of_powers() -> None:
    """A time that is proportional to inputs and outputs comes out at any widths."""
    model = Kinds().eval()
    table, costs, clock = table_of(model, IMAGE)
    uses = find_uses(model, ((IMAGE,), {}), real=False)
    assert len(clock.points) == len(set(clock.points))  # each was measured once
    for share in (1.0, 0.7, 0.33, 0.1):
        shapes = costs.shapes(np.maximum(1, (share * costs.sizes).astype(np.int64)))
        names = [name for name, _ in model.named_parameters()]
        for use, found in zip(uses, table.seconds(shapes), strict=True):
            row = shapes[names.index(use.parameter)]
            inputs = round(row[use.inputs.dim] * use.inputs.times)
            outputs = round(row[use.outputs.dim] * use.outputs.times)
            assert found == pytest.approx(seconds(use.call, inputs, outputs), rel=1e-9)


def test_narrower_layers_are_not_slower() -> None:
    """A measurement that noise made longer does not show in the table."""
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.Conv2d(64, 8, 3))
    costs = Costs(model, rsprune.trace(model, IMAGE))
    uses = find_uses(model, ((IMAGE,), {}), real=False)

    class Noisy(PaperClock):
        def layer(self, call: Call, inputs: int, outputs: int) -> float:
            return super().layer(call, inputs, outputs) * (50 if inputs < 10 else 1)

    small, full = costs.shapes(costs.sizes // 10), costs.shapes(costs.sizes)
    table = Table(uses, [0, 2, 4], full, small, Noisy(model, IMAGE))
    assert (table.seconds(small) <= table.seconds(full)).all()
    assert table.activations(small) < table.activations(full)


class Norms(nn.Module):
    """Norms before layers, as in DenseNet: fresh ones are all alike."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3)
        self.one, self.two = nn.BatchNorm2d(16), nn.BatchNorm2d(16)
        self.middle, self.last = nn.Conv2d(16, 16, 3), nn.Conv2d(16, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(self.one(self.stem(x).relu()).relu())
        out: Tensor = self.last(self.two(x.relu()).relu())
        return out


def test_only_the_given_model_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cuts are measured in files made from that one; its modes stay."""

    def convert(*_: object) -> None:
        raise AssertionError("converted")

    monkeypatch.setattr(clocks, "ready", convert)
    monkeypatch.setattr(clocks, "_PATIENCE", 0.0)
    monkeypatch.setattr(clocks, "_SLICE", 0.0)
    model = Norms().train()
    graph = rsprune.trace(model, IMAGE)
    clock = MachineClock(model, graph, "onnxruntime", 3, 1)
    cuts = [
        rsprune.prune(model, graph, {"stem": range(*units[0]), "middle": range(*units[1])})
        for units in (((0, 4), (0, 9)), ((0, 15), (0, 1)))
    ]
    assert len(clock.models(cuts)) == 3
    assert all(seconds > 0 for seconds in clock.models(cuts))
    assert all(module.training for module in model.modules())
