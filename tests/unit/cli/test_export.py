"""``rsprune export``: runs and files to other runtimes, and one line for what goes wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("typer")
pytest.importorskip("sklearn")
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

Captured = pytest.CaptureFixture[str]


class Mine(nn.Module):
    """A network of the user's own, named as package.module:factory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


def halved(model: nn.Module, x: Tensor) -> nn.Module:
    return rsprune.compress(model, x, target_macs=0.5)


@pytest.fixture(scope="module")
def slim() -> nn.Module:
    """A small CNN for digits at half of its multiply-accumulates."""
    torch.manual_seed(0)
    return halved(build("small_cnn", classes=10), torch.zeros(1, 1, 8, 8))


def finish(directory: Path, slim: nn.Module, **keys: str) -> Path:
    """A run directory as a run leaves it."""
    begin(read_recipe(None, {"model": "small_cnn", "data": "digits", **keys}), directory)
    write(directory)
    rsprune.save(slim, directory / "model.safetensors")
    return directory


@pytest.fixture
def finished(tmp_path: Path, slim: nn.Module) -> Path:
    return finish(tmp_path / "run", slim)


def exported(capsys: Captured, *arguments: str) -> dict[str, Any]:
    assert run(["export", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def texts_of(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(str(path)).metadata_props}


def test_a_run_in_single_precision_and_in_8_bits(finished: Path, capsys: Captured) -> None:
    """A run needs no options; its files say what they are, and are not replaced unasked."""
    found = exported(capsys, str(finished), "--int8")
    plain, small = found["files"]
    path, quantised = finished / "model.onnx", finished / "model.int8.onnx"
    assert [f["path"] for f in found["files"]] == [str(path), str(quantised)]
    assert found["inputs"] == "test images"
    assert plain["difference"] <= 1e-4 < small["difference"]
    assert plain["bytes"] == path.stat().st_size > 2 * small["bytes"]
    assert small["agreement"] > 0.5

    texts, after = texts_of(path), events()[-1]["after"]
    assert (texts["name"], texts["data"]) == ("small_cnn", "digits")
    assert json.loads(texts["test_accuracy"]) == after["test_accuracy"]
    recipe = (finished / "recipe.toml").read_bytes()
    assert texts["recipe_sha256"] == hashlib.sha256(recipe).hexdigest()
    measured = {"precision": "int8", "test_accuracy": str(small["test_accuracy"]["after"])}
    del texts["validation_accuracy"]
    assert texts_of(quantised) == texts | measured

    assert run(["export", str(finished)]) == 1
    assert "--force" in capsys.readouterr().err
    before = path.read_bytes()
    assert run(["export", str(finished), "--int8", "--out", str(path)]) == 1  # it is there
    quantised.unlink()
    capsys.readouterr()
    assert run(["export", str(finished), "--int8"]) == 0
    out, err = capsys.readouterr()
    first, second = out.splitlines()
    assert first.startswith(f"{quantised}: ")
    assert first.endswith("; compared on test images")
    assert (second, err) == (f"{path}: exists already, and stays as it is", "")
    assert path.read_bytes() == before


def test_a_file_of_any_class(tmp_path: Path, capsys: Captured) -> None:
    """A file of weights needs the name of its model, and the size of one input."""
    torch.manual_seed(0)
    rsprune.save(halved(Mine(), torch.zeros(1, 2, 9, 9)), tmp_path / "slim.safetensors")
    arguments = ["--model", f"{__name__}:Mine", "--input", "2x9x9"]
    found = exported(
        capsys, str(tmp_path / "slim.safetensors"), *arguments, "--format", "pt2", "--fold"
    )
    (file,) = found["files"]
    path = tmp_path / "slim.pt2"
    assert (file["path"], file["bytes"]) == (str(path), path.stat().st_size)
    assert (file["format"], file["folded"], file["batches"]) == ("pt2", 1, [8, 10])
    assert found["inputs"] == "random inputs of 2x9x9"
    extra = {"metadata.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    assert program(torch.zeros(3, 2, 9, 9)).shape == (3, 3)
    assert json.loads(extra["metadata.json"])["name"] == f"{__name__}:Mine"


def test_a_file_with_data_and_options_of_its_model(tmp_path: Path, capsys: Captured) -> None:
    """With data, classes and sizes follow; keys of a recipe are options."""
    model = build("small_cnn", classes=10, width=48)
    rsprune.save(halved(model, torch.zeros(1, 1, 8, 8)), tmp_path / "slim.safetensors")
    arguments = [
        str(tmp_path / "slim.safetensors"), "--model", "small_cnn", "--model_options.width", "48",
        "--data", "digits", "--out", str(tmp_path / "again.safetensors"),
    ]  # fmt: skip
    found = exported(capsys, *arguments)
    assert found["inputs"] == "test images"
    assert found["files"][0]["difference"] <= 1e-6
    again = rsprune.load(model, tmp_path / "again.safetensors")
    assert again.conv1.out_channels < 48
    assert 0 <= found["files"][0]["test_accuracy"]["after"] <= 1

    arguments[-1:] = [str(tmp_path / "small.int8.onnx"), "--int8"]  # the second file's name
    names = [Path(file["path"]).name for file in exported(capsys, *arguments)["files"]]
    assert names == ["small.onnx", "small.int8.onnx"]
    (tmp_path / "small.int8.onnx").unlink()
    assert run(["export", *arguments]) == 1  # of which weights is the file that is there?
    assert "small.onnx' exists already" in capsys.readouterr().err
    assert not (tmp_path / "small.int8.onnx").exists()


def test_a_run_on_other_images_is_measured_again(finished: Path) -> None:
    """What the run measured holds for its own test images alone."""
    assert run(["export", str(finished), "--loading.normalise", "none"]) == 0
    texts = texts_of(finished / "model.onnx")
    assert json.loads(texts["test_accuracy"]) != events()[-1]["after"]["test_accuracy"]
    assert "validation_accuracy" not in texts


def test_a_run_whose_data_are_gone(tmp_path: Path, slim: nn.Module, capsys: Captured) -> None:
    """Is compared on random inputs, and cannot be calibrated."""
    keys = {"data": "fashion-mnist", "loading.directory": str(tmp_path / "none")}
    directory = finish(tmp_path / "run", slim, **keys)
    assert run(["export", str(directory), "--int8"]) == 1
    assert "no calibration data for --int8: " in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.onnx"))
    assert exported(capsys, str(directory), "--format", "pt2")["inputs"] == "random inputs of 1x8x8"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "Name a run directory or a file of weights"),
        (["FILE"], 2, "--model"),
        (["FILE", "--model", "small_cnm"], 2, "Did you mean small_cnn"),
        (["FILE", "--model", f"{__name__}:Mine"], 2, "--input: say how large one input"),
        (["RUN", "--out", "model.weird"], 2, "add --format onnx"),
        (["RUN", "--int8", "--out", "."], 2, "does not say which format"),
        (["FILE", "--model", "small_cnn", "--input", "1x8x"], 2, "1x8x"),
        (["FILE", "--model", "small_cnn", "--data", "digits", "--input", "1x8x8"], 2, "own size"),
        (["FILE", "--model", "vgg16"], 1, "another model"),
        (["FILE", "--model", "small_cnn", "--input", "1x8x8", "--int8"], 2, "no calibration data"),
        (["RUN", "--model", "small_cnn"], 2, "leave it out"),
        (["RUN", "--input", "1x8x8"], 2, "leave it out"),
        (["RUN", "--out", "no/such/place.onnx"], 2, "a directory that exists"),
        (["RUN", "--out", "/proc/model.onnx"], 1, "'/proc/model.onnx' could not be written"),
        (["RUN", "--format", "onxx"], 2, "Did you mean 'onnx'"),
        (["RUN", "--format", "safetensors"], 2, "--out: name the file"),
        (["RUN", "--format", "safetensors", "--out", "a", "--fold"], 2, "rsprune.load fills"),
        (["RUN", "--format", "pt2", "--int8"], 2, "quantises ONNX files alone"),
        (["RUN", "--formt", "pt2"], 2, "--formt: unknown option. Did you mean --format"),
        (["EMPTY"], 1, "no recipe.toml"),
        (["missing.safetensors", "--model", "small_cnn"], 1, "There is no 'missing.safetensors'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(
    arguments: list[str], code: int, said: str, finished: Path, tmp_path: Path, capsys: Captured
) -> None:
    """One line on stderr that names the culprit, and nothing is written."""
    (tmp_path / "empty").mkdir()
    places = {
        "FILE": str(finished / "model.safetensors"),
        "RUN": str(finished),
        "EMPTY": str(tmp_path / "empty"),
    }
    before = sorted(tmp_path.rglob("*"))
    assert run(["export", *(places.get(a, a) for a in arguments)]) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
    assert sorted(tmp_path.rglob("*")) == before


def test_unfinished_run(finished: Path, capsys: Captured) -> None:
    """The line says how to finish it."""
    (finished / "model.safetensors").unlink()
    assert run(["export", str(finished)]) == 1
    assert f"rsprune compress --resume {finished}" in capsys.readouterr().err
