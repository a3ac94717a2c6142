"""latency: larger models take longer, turns are fair, and nothing is left changed."""

from __future__ import annotations

import gc
import sys
import time
from statistics import median

import pytest
import torch
from torch import Tensor, nn

from rsprune.errors import InvalidParameterError, TraceError
from rsprune.metrics.latency import Latency, latency


class Sleeper(nn.Module):
    """Takes a known time, and notes whose turn it was and how it was called."""

    def __init__(self, seconds: float, turns: list[str], name: str) -> None:
        super().__init__()
        self.seconds, self.turns, self.name = seconds, turns, name
        self.inner = nn.Linear(2, 2)
        self.shapes: list[tuple[int, ...]] = []
        self.collecting: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.turns.append(self.name)
        self.shapes.append(tuple(x.shape))
        assert not self.training
        assert not self.inner.training
        assert torch.is_inference_mode_enabled()
        self.collecting.append(gc.isenabled())
        time.sleep(self.seconds)
        return x


def test_known_times_in_turns() -> None:
    """A model that takes twice as long is measured so, and the two take turns."""
    turns: list[str] = []
    models = {"slow": Sleeper(0.02, turns, "slow"), "fast": Sleeper(0.01, turns, "fast")}
    found = latency(models, torch.zeros(1, 2), runs=10)
    assert 0.02 <= found["slow"].median < 0.04
    assert 0.01 <= found["fast"].median < found["slow"].median
    assert turns == ["slow", "fast"] * 16
    assert not any(models["slow"].collecting[1:])  # the first is to see that it runs
    assert found["slow"].runs == 10
    assert found["slow"].low <= found["slow"].median <= found["slow"].high


def test_fewer_multiplications_take_less_time() -> None:
    """A product of a 64th of the size is faster, on a busy machine too."""
    models = {"large": nn.Linear(2048, 2048), "small": nn.Linear(2048, 32)}
    found = latency(models, torch.randn(16, 2048), runs=20, threads=1)
    assert found["small"].median < found["large"].median


def test_slow_models_are_run_less_often() -> None:
    """After the seconds no further turn begins; but three are always taken."""
    slow = {"slow": Sleeper(0.05, [], "slow")}
    assert 3 <= latency(slow, torch.zeros(1, 2), seconds=0.2)["slow"].runs <= 5
    assert latency(slow, torch.zeros(1, 2), seconds=1e-9)["slow"].runs == 3
    assert len(slow["slow"].turns) <= 1 + 5 + 5 + 1 + 1 + 3  # first runs too are fewer
    assert latency(slow, torch.zeros(1, 2), runs=2, seconds=1e-9)["slow"].runs == 2


def test_batches() -> None:
    """The example's inputs are repeated, or the first of them taken."""
    model = Sleeper(0, [], "model")
    for batch in (1, 5):
        latency({"model": model}, torch.zeros(2, 2), runs=2, batch=batch)
    assert set(model.shapes[:8]) == {(1, 2)}
    assert set(model.shapes[8:]) == {(5, 2)}


class Hungry(nn.Module):
    """Needs a known number of bytes, besides its weights."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.weight = size, nn.Parameter(torch.zeros(2**20))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.ones(self.size // 4).sum()


@pytest.mark.skipif(sys.platform != "linux", reason="measured on Linux alone")
def test_memory() -> None:
    """It is that of the weights and of one run, give or take some pages."""
    models = {"some": Hungry(2**24), "more": Hungry(2**26)}
    found = latency(models, torch.zeros(1), runs=2, threads=1, memory=True)
    for name, model in models.items():
        expected = model.size + 2**22
        memory = found[name].memory
        assert memory is not None
        assert abs(memory - expected) < 2**22
    assert latency(models, torch.zeros(1), runs=2)["some"].memory is None


def test_onnxruntime() -> None:
    """A product of a 64th of the size is faster and smaller there, too."""
    pytest.importorskip("onnxruntime")
    models = {"large": nn.Linear(2048, 2048), "small": nn.Linear(2048, 32)}
    found = latency(
        models, torch.randn(2, 2048), runtime="onnxruntime", batch=16, threads=1, memory=True
    )
    assert found["small"].median < found["large"].median
    small, large = found["small"].memory, found["large"].memory
    assert (small is None and large is None) or small < large
    assert all(model.training for model in models.values())


def test_nothing_is_left_changed() -> None:
    """Modes, threads, the garbage collector and running statistics are as before."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout())
    model[1].eval()
    modes = [m.training for m in model.modules()]
    state = {name: t.clone() for name, t in model.state_dict().items()}
    threads = torch.get_num_threads()
    latency({"model": model}, torch.randn(4, 1, 5, 5), runs=2, threads=1)
    assert [m.training for m in model.modules()] == modes
    assert torch.get_num_threads() == threads
    assert gc.isenabled()
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    model(torch.randn(4, 1, 5, 5)).sum().backward()  # parameters are no inference tensors


def test_a_failing_model_leaves_nothing_changed() -> None:
    """The error names the model, and modes are restored."""
    models = {"good": nn.Linear(2, 2), "bad": nn.Sequential(nn.Linear(3, 2))}
    with pytest.raises(TraceError, match="'bad'"):
        latency(models, torch.zeros(1, 2), runs=2)
    assert all(model.training for model in models.values())
    assert gc.isenabled()


def test_median_and_quartiles() -> None:
    """The figures are the usual ones."""
    from rsprune.metrics.latency import _summary

    seconds = [5.0, 1.0, 2.0, 4.0, 3.0]
    assert _summary(seconds) == Latency(median(seconds), 2.0, 4.0, 5)
    assert str(Latency(0.00125, 0.001, 0.002, 7)) == "1.25 ms (half of 7 runs: 1 to 2 ms)"


@pytest.mark.parametrize(
    ("models", "options", "said"),
    [
        ({}, {}, "models"),
        ({"a": "not a model"}, {}, "model"),
        ({"a": nn.Linear(2, 2)}, {"runs": 1}, "runs"),
        ({"a": nn.Linear(2, 2)}, {"threads": 0}, "threads"),
        ({"a": nn.Linear(2, 2)}, {"batch": 0}, "batch"),
        ({"a": nn.Linear(2, 2)}, {"seconds": 0}, "seconds"),
        ({"a": nn.Linear(2, 2)}, {"runtime": "tensorflow"}, "runtime"),
    ],
    ids=["none", "no module", "runs", "threads", "batch", "seconds", "runtime"],
)
def test_bad_input(models: dict[str, nn.Module], options: dict[str, int], said: str) -> None:
    """The error names the parameter."""
    with pytest.raises(InvalidParameterError, match=said):
        latency(models, torch.zeros(1, 2), **options)  # type: ignore[arg-type]
