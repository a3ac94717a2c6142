"""``rsprune export``: runs and files to ONNX, and one line for everything that goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("typer")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import onnx

import rsprune
from rsprune.cli.app import run
from rsprune.engine.directory import begin
from rsprune.engine.recipe import read_recipe
from rsprune.models import build
from tests.unit.report.events import events, write


@pytest.fixture(scope="module")
def slim() -> torch.nn.Module:
    """A small CNN for digits without four of its channels."""
    torch.manual_seed(0)
    model, x = build("small_cnn", classes=10), torch.randn(2, 1, 8, 8)
    graph = rsprune.trace(model, x)
    group = next(g for g in graph.groups if g.prunable)
    return rsprune.prune(model, graph, drop={group.name: [1, 3, 5, 7]})


@pytest.fixture
def finished(tmp_path: Path, slim: torch.nn.Module) -> Path:
    """A run directory as a run leaves it."""
    directory = tmp_path / "run"
    begin(read_recipe(None, {"model": "small_cnn", "data": "digits"}), directory)
    write(directory)
    rsprune.save(slim, directory / "model.safetensors")
    return directory


def test_run(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run needs no further options; the file says what it is; a second time needs --force."""
    assert run(["export", str(finished)]) == 0
    out, err = capsys.readouterr()
    path = finished / "model.onnx"
    assert (out.count("\n"), err) == (1, "")
    assert out.startswith(f"{path}: ")
    texts = {entry.key: entry.value for entry in onnx.load(str(path)).metadata_props}
    after = events()[-1]["after"]
    assert texts["model"] == "small_cnn"
    assert json.loads(texts["macs"]) == after["macs"]
    assert json.loads(texts["test_accuracy"]) == after["test_accuracy"]
    assert run(["export", str(finished)]) == 1
    assert "--force" in capsys.readouterr().err


def test_file(tmp_path: Path, slim: torch.nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of weights needs the model's name; --json is for programs."""
    rsprune.save(slim, tmp_path / "slim.safetensors")
    arguments = ["export", str(tmp_path / "slim.safetensors"), "--model", "small_cnn"]
    assert run([*arguments, "--input", "1x8x8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    path = tmp_path / "slim.onnx"
    assert (found["path"], found["bytes"]) == (str(path), path.stat().st_size)
    assert found["difference"] <= 1e-4
    assert found["batches"] == [2, 4]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["FILE"], 2, "--model"),
        (["FILE", "--model", "small_cnm"], 2, "Did you mean small_cnn"),
        (["FILE", "--model", "small_cnn", "--input", "1x8x"], 2, "1x8x"),
        (["FILE", "--model", "vgg16"], 1, "another model"),
        (["RUN", "--model", "small_cnn"], 2, "left out"),
        (["RUN", "--input", "1x8x8"], 2, "left out"),
        (["RUN", "--out", "no/such/place.onnx"], 2, "a directory that exists"),
        (["EMPTY"], 1, "no recipe.toml"),
        (["missing.safetensors", "--model", "small_cnn"], 1, "no file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(
    arguments: list[str], code: int, said: str, finished: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One line on stderr that names the culprit, and nothing is written."""
    (tmp_path / "empty").mkdir()
    places = {
        "FILE": str(finished / "model.safetensors"),
        "RUN": str(finished),
        "EMPTY": str(tmp_path / "empty"),
    }
    assert run(["export", *(places.get(a, a) for a in arguments)]) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
    assert list(tmp_path.rglob("*.onnx")) == []


def test_unfinished_run(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line says how to finish it."""
    (finished / "model.safetensors").unlink()
    assert run(["export", str(finished)]) == 1
    assert f"rsprune compress --resume {finished}" in capsys.readouterr().err
