"""compare_latency: every place once, its ratios, what is left out, and its file."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rsprune.errors import ExportError, FileFormatError, InvalidParameterError, StorageError
from rsprune.metrics.comparison import (
    LatencyComparison,
    LatencyRow,
    compare_latency,
    read_comparison,
)
from rsprune.metrics.latency import Latency, latency


class Sleeper(nn.Linear):
    """A product that takes a known time more."""

    def __init__(self, outputs: int, seconds: float) -> None:
        super().__init__(4, outputs)
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return super().forward(x)


@pytest.fixture(scope="module")
def found() -> LatencyComparison:
    """Four times fewer multiply-accumulates, and about twice as fast."""
    return compare_latency(
        Sleeper(8, 0.02), Sleeper(2, 0.01), torch.zeros(1, 4), runtimes=["torch"], batches=[1, 3],
        threads=[1], runs=3,
    )  # fmt: skip


def test_rows_and_ratios(found: LatencyComparison) -> None:
    """A row for each place; the efficiency relates the speed-up to the MACs."""
    assert [(r.runtime, r.batch, r.threads) for r in found.rows] == [
        ("torch", 1, 1), ("torch", 3, 1),
    ]  # fmt: skip
    assert found.macs == 4
    for row in found.rows:
        assert row.speedup == row.original.median / row.compressed.median > 1
        assert row.efficiency == row.speedup / 4
        assert (row.original.memory is None) == (sys.platform != "linux")
    assert found.left_out == {}
    text = str(found)
    assert f"{found.rows[0].speedup:.2f}x" in text
    assert "4.00x fewer MACs" in text
    assert str(replace(found, macs=1.0)).endswith("\nas many MACs")
    assert len({len(line) for line in text.splitlines()[:3]}) == 1


def test_progress_is_told() -> None:
    """How much is done never falls, and ends at all of it."""
    told: list[tuple[int, int, str]] = []
    compare_latency(
        nn.Linear(2, 2), nn.Linear(2, 1), torch.zeros(1, 2), runtimes=["torch"], batches=(1, 2),
        threads=(1, 2), runs=2, on_progress=lambda *words: told.append(words),
    )  # fmt: skip
    done = [one for one, _, _ in told]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 4)
    assert {total for _, total, _ in told} == {4}
    assert "torch, batch 2, 1 thread" in [what for _, _, what in told]


def test_a_runtime_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left out, with the extra that brings it; who insists on it gets an error."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    models = nn.Linear(2, 2), nn.Linear(2, 1)
    options: dict[str, Any] = {
        "runtimes": ("onnxruntime", "torch"), "batches": (1,), "threads": (1,), "runs": 2,
    }  # fmt: skip
    found = compare_latency(*models, torch.zeros(1, 2), **options)
    assert [row.runtime for row in found.rows] == ["torch"]
    assert 'pip install "rsprune[export]"' in found.left_out["onnxruntime"]
    assert "onnxruntime was left out: ONNX needs" in str(found)
    with pytest.raises(ExportError, match=r"rsprune\[export\]"):
        compare_latency(*models, torch.zeros(1, 2), strict=True, **options)


def test_the_file(found: LatencyComparison, tmp_path: Path) -> None:
    """What was written is read again; a damaged file, or another one, is named."""
    path = tmp_path / "latency.json"
    found.write(path)
    assert read_comparison(path) == found
    assert json.loads(path.read_text())["rows"][0]["speedup"] == found.rows[0].speedup
    for text in ("{", "[]", '{"rows": [{}]}', '{"rows": [], "other": 1}'):
        path.write_text(text)
        with pytest.raises(FileFormatError, match=r"latency\.json' is not as rsprune latency"):
            read_comparison(path)
    with pytest.raises(StorageError, match="could not be written"):
        found.write(tmp_path / "no" / "latency.json")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"runtimes": ["torch", "tensorflow"]}, "runtimes"),
        ({"runtimes": []}, "runtimes"),
        ({"batches": [1, 0]}, "batches"),
        ({"batches": []}, "batches"),
        ({"threads": [-1]}, "threads"),
        ({"runs": 1}, "runs"),
        ({"seconds": 0}, "seconds"),
    ],
)
def test_bad_input_is_refused_before_any_run(options: dict[str, Any], said: str) -> None:
    """The error names the parameter, and no model is run for it."""
    model = Sleeper(1, 60)
    with pytest.raises(InvalidParameterError, match=f"'{said}' parameter of compare_latency"):
        compare_latency(model, model, torch.zeros(1, 4), **options)


def test_new_rows_stand_beside_older_ones_of_the_same_machine() -> None:
    one = Latency(2.0, 1.9, 2.1, 9)

    def found(rows: list[tuple[str, int, int, float]], **machine: str) -> LatencyComparison:
        made = (LatencyRow(name, b, t, one, one, speed, speed) for name, b, t, speed in rows)
        return LatencyComparison(2.0, tuple(made), {}, {"cpu": "a", "torch": "b", **machine})

    older = found([("onnxruntime", 1, 1, 1.0), ("torch", 1, 1, 1.0)])
    newer = found([("torch", 1, 1, 3.0), ("torch", 8, 2, 3.0)])
    both = newer.with_rows_of(older)
    assert [(row.runtime, row.batch, row.speedup) for row in both.rows] == [
        ("torch", 1, 3.0), ("torch", 8, 3.0), ("onnxruntime", 1, 1.0),
    ]  # fmt: skip
    assert [row.runtime for row in both.first_rows] == ["torch", "onnxruntime"]
    assert newer.with_rows_of(found([("compile", 1, 1, 1.0)], cpu="other")) == newer
    more = found([("torch", 1, 4, 3.0)]).with_rows_of(both)
    assert [(row.runtime, row.threads) for row in more.first_rows] == [
        ("torch", 4), ("onnxruntime", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", [{"batches": 1}, {"threads": 2}, {"runtimes": "torch"}])
def test_one_is_no_list(wrong: dict[str, Any]) -> None:
    model, x = nn.Linear(2, 2), torch.zeros(1, 2)
    with pytest.raises(InvalidParameterError, match="a list of at least one"):
        compare_latency(model, model, x, **wrong)
    with pytest.raises(InvalidParameterError, match="models by name"):
        latency(model, x)  # type: ignore[arg-type]
