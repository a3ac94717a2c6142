"""latency: larger models take longer, turns are fair, and nothing is left changed."""

from __future__ import annotations

import gc
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

    def forward(self, x: Tensor) -> Tensor:
        self.turns.append(self.name)
        assert not self.training
        assert not self.inner.training
        assert torch.is_inference_mode_enabled()
        assert not gc.isenabled()
        time.sleep(self.seconds)
        return x


def test_known_times_in_turns() -> None:
    """A model that takes twice as long is measured so, and the two take turns."""
    turns: list[str] = []
    models = {"slow": Sleeper(0.02, turns, "slow"), "fast": Sleeper(0.01, turns, "fast")}
    found = latency(models, torch.zeros(1, 2), runs=10)
    assert 0.02 <= found["slow"].median < 0.04
    assert 0.01 <= found["fast"].median < found["slow"].median
    assert turns == ["slow", "fast"] * 15
    assert found["slow"].runs == 10
    assert found["slow"].low <= found["slow"].median <= found["slow"].high


def test_fewer_multiplications_take_less_time() -> None:
    """A product of a 64th of the size is faster, on a busy machine too."""
    models = {"large": nn.Linear(2048, 2048), "small": nn.Linear(2048, 32)}
    found = latency(models, torch.randn(16, 2048), runs=20, threads=1)
    assert found["small"].median < found["large"].median


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
    ],
    ids=["none", "no module", "runs", "threads"],
)
def test_bad_input(models: dict[str, nn.Module], options: dict[str, int], said: str) -> None:
    """The error names the parameter."""
    with pytest.raises(InvalidParameterError, match=said):
        latency(models, torch.zeros(1, 2), **options)  # type: ignore[arg-type]
