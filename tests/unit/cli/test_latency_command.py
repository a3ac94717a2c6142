"""``rsprune latency``: runs and files, a table and a file, and a line for what goes wrong."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("typer")
pytest.importorskip("rich")

import rsprune
from rsprune.cli.app import run
from rsprune.engine.directory import begin
from rsprune.engine.recipe import read_recipe
from rsprune.metrics.comparison import read_comparison
from rsprune.models import build
from tests.unit.report.events import write

Captured = pytest.CaptureFixture[str]
QUICKLY = ("--threads", "1", "--runs", "2")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a finished run and a file of weights."""
    home = tmp_path_factory.mktemp("latency")
    torch.manual_seed(0)
    model, x = build("small_cnn", classes=10), torch.randn(2, 1, 8, 8)
    slim = rsprune.compress(model, x, target_macs=0.5)
    rsprune.save(slim, home / "slim.safetensors")
    begin(read_recipe(None, {"model": "small_cnn", "data": "digits"}), home / "run")
    write(home / "run")
    (home / "run" / "state").mkdir()
    rsprune.save(slim, home / "run" / "model.safetensors")
    return home


def test_a_run(home: Path, capsys: Captured) -> None:
    """The table has a row for each place, and the directory keeps the figures."""
    options = ("--runtime", "torch", "--batch", "1,3", *QUICKLY)
    assert run(["latency", str(home / "run"), *options]) == 0
    out, err = capsys.readouterr()
    found = read_comparison(home / "run" / "latency.json")
    assert [(row.batch, row.threads) for row in found.rows] == [(1, 1), (3, 1)]
    assert 1.9 < found.macs < 2.1
    for row in found.rows:
        assert f"{row.speedup:.2f}x" in out
        assert f"{row.efficiency:.2f}" in out
    assert f"{found.macs:.2f}x fewer MACs" in out
    assert f"{home / 'run' / 'latency.json'}; rsprune report" in out
    assert err == ""


def test_figures_of_a_published_run_stay(home: Path, tmp_path: Path, capsys: Captured) -> None:
    published = tmp_path / "published"
    shutil.copytree(home / "run", published, ignore=shutil.ignore_patterns("state"))
    (published / "latency.json").write_text("as it was")
    assert run(["latency", str(published), "--runtime", "torch", "--batch", "1", *QUICKLY]) == 0
    assert "latency.json stays as it was published" in capsys.readouterr().out
    assert (published / "latency.json").read_text() == "as it was"


def test_a_file_as_json(home: Path, capsys: Captured) -> None:
    """Weights need the model's name; only JSON goes to stdout; nothing is kept."""
    arguments = ["latency", str(home / "slim.safetensors"), "--model", "small_cnn", "--input"]
    options = ("--runtime", "torch", "--batch=2", *QUICKLY)
    assert run([*arguments, "1x8x8", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["runtime"], row["batch"]) for row in found["rows"]] == [("torch", 2)]
    for row in found["rows"]:
        assert row["original"]["runs"] == 2
        assert row["original"]["low"] <= row["original"]["median"] <= row["original"]["high"]
    assert not (home / "latency.json").exists()


def test_a_runtime_that_is_not_installed(
    home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for, it is an error that names the extra; else it is left out, and a line says so."""
    import rsprune.cli.latency as module

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert run(["latency", str(home / "run"), "--runtime", "torch,onnxruntime", *QUICKLY]) == 1
    assert 'pip install "rsprune[export]"' in capsys.readouterr().err
    monkeypatch.setattr(module, "RUNTIMES", ("torch", "onnxruntime"))  # compiling takes seconds
    assert run(["latency", str(home / "run"), "--batch", "1", *QUICKLY]) == 0
    out = capsys.readouterr().out
    assert "onnxruntime was left out: ONNX needs a package" in out
    assert 'pip install "rsprune[export]"' in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "rsprune latency DIR"),
        (["nowhere"], 1, "There is no 'nowhere'"),
        (["FILE"], 2, "--model"),
        (["FILE", "--model", "small_cnm"], 2, "Did you mean small_cnn"),
        (["FILE", "--model", "small_cnn", "--input", "1x8x"], 2, "1x8x"),
        (["FILE", "--model", "small_cnn", "--input", "3x8x8"], 1, "failed on inputs of shape"),
        (["RUN", "--input", "1x8x8"], 2, "--input: the run knows"),
        (["RUN", "--model", "vgg16"], 2, "--model"),
        (["RUN", "--runtime", "torch,onnxruntim"], 2, "Did you mean 'onnxruntime'"),
        (["RUN", "--batch", "1,zero"], 2, "'--batch' parameter of rsprune latency"),
        (["RUN", "--batch", "1,0"], 2, "'--batch' parameter of rsprune latency"),
        (["RUN", "--threads", "1,-2"], 2, "'--threads' parameter of rsprune latency"),
        (["RUN", "--runs", "1"], 2, "--runs"),
        (["RUN", "--bach", "1"], 2, "bach"),
    ],
)  # fmt: skip
def test_bad_input(
    home: Path, capsys: Captured, arguments: list[str], code: int, said: str
) -> None:
    """One line that names what is wrong."""
    places = {"FILE": home / "slim.safetensors", "RUN": home / "run"}
    words = [str(places.get(word, word)) for word in arguments]
    assert run(["latency", *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
