"""Recipes that measure times: their keys, and what is refused before any training."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import rsprune
from rsprune.compression import widths
from rsprune.engine import run as engine
from rsprune.engine.directory import begin
from rsprune.engine.machine import Machine
from rsprune.engine.recipe import read_recipe
from rsprune.engine.run import Run, execute
from rsprune.errors import ExportError, InvalidParameterError, RecipeError, RunError
from rsprune.models import SmallCNN
from rsprune.structure.groups import ChannelGraph
from tests.integration.killing import OPTIONS, Quiet
from tests.unit.compression.clocks import PaperClock

MEASURED = {
    **OPTIONS, "compress.round_to": "auto", "compress.target_latency": "0.4",
    "compress.runtime": "onnxruntime", "compress.batch": "8", "compress.threads": "1",
}  # fmt: skip


def test_the_keys(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    recipe = read_recipe(None, MEASURED)
    path.write_text(recipe.to_toml())
    assert read_recipe(path) == recipe
    cut = recipe.compress
    assert (cut.round_to, cut.target_latency, cut.runtime) == ("auto", 0.4, "onnxruntime")
    assert (cut.batch, cut.threads) == (8, 1)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("round_to", "best", r"--compress\.round_to: must be a whole number .* or 'auto'"),
        ("round_to", "0", r"--compress\.round_to: must be a whole number .* or 'auto'"),
        ("target_latency", "2", r"--compress\.target_latency: must be less than or equal to 1"),
        ("runtime", "onnx", "must be 'torch', 'compile' or 'onnxruntime'. Got 'onnx'"),
        ("batch", "0", "greater than or equal to 1"),
    ],
)
def test_mistakes(key: str, value: str, words: str) -> None:
    with pytest.raises(RecipeError, match=words) as caught:
        read_recipe(None, {f"compress.{key}": value})
    assert len(caught.value.problems) == 1


def begun(directory: Path, **changes: str) -> Path:
    begin(read_recipe(None, {**MEASURED, **changes}), directory)
    return directory


@pytest.mark.parametrize("trained", [False, True])
def test_an_impossible_target_shows_before_any_training(
    trained: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(model: nn.Module, graph: ChannelGraph, _options: object) -> PaperClock:
        return PaperClock(model, *graph.arguments[0], fixed=1.0)

    monkeypatch.setattr(widths, "machine", slow)
    rsprune.save(SmallCNN(width=8), weights := tmp_path / "trained.safetensors")
    directory = begun(tmp_path / "run", **({"weights": str(weights)} if trained else {}))
    with pytest.raises(InvalidParameterError, match=r"'target_latency'.*at least 1\.00"):
        execute(directory, Quiet())
    assert not (directory / "events.jsonl").exists()


def test_a_missing_runtime_shows_before_any_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ExportError('pip install "rsprune[export]"')

    monkeypatch.setattr(engine, "require_onnx", missing)
    with pytest.raises(ExportError, match=r"rsprune\[export\]"):
        Run(begun(tmp_path / "run"), Quiet())


def test_a_cut_to_a_time_may_go_by_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        widths, "machine", lambda model, graph, _options: PaperClock(model, *graph.arguments[0])
    )
    changes = {"compress.spread": "cost", "recursion.rounds": "1"}
    run = Run(begun(tmp_path / "run", **changes), Quiet())
    assert run.cut_options["spread"] == "cost"


def test_several_processes_cannot_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would cut its own network."""
    monkeypatch.setattr(Machine, "shard", property(lambda _: (0, 2)))
    with pytest.raises(RunError, match=r"one process.*target_macs"):
        Run(begun(tmp_path / "run"), Quiet())


def test_a_run_meets_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the recipe to the last cut; the events tell the time of every round's model."""
    monkeypatch.setattr(
        widths,
        "machine",
        lambda model, graph, _options: PaperClock(model, *graph.arguments[0]),
    )
    directory = begun(
        tmp_path / "run",
        **{
            "model_options.width": "16",
            "compress.target_latency": "0.25",
            "compress.unit": "layer",
        },
    )
    times = []

    class Told(Quiet):
        def event(self, event: object) -> None:
            if event["event"] == "round":  # type: ignore[index]
                times.append(event["latency"])  # type: ignore[index]

    execute(directory, Told())
    assert times == [pytest.approx(0.4875, abs=0.0125), pytest.approx(0.24, abs=0.01)]
