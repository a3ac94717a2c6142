"""``rsprune evaluate``: the figures of a run, measured again, and what is no run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("typer")

from rsprune.cli.app import run
from tests.commands import QUICK, events

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "finished"
    assert run(["compress", "--out", str(directory), *QUICK]) == 0
    return directory


def measured(capsys: Captured, *arguments: str) -> dict[str, object]:
    assert run(["evaluate", *arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_is_worth_what_it_said(finished: Path, capsys: Captured) -> None:
    found, finish = measured(capsys, str(finished)), events(finished)[-1]
    for side in ("before", "after"):
        assert found[side] == {key: finish[side][key] for key in ("macs", "weights", "params")}
    assert found["test_accuracy"] == finish["after"]["test_accuracy"]
    assert found["baseline"] == finish["before"]["test_accuracy"]
    assert (found["data"], found["images"]) == ("digits", 360)


@pytest.mark.parametrize("key", ["--loading.normalise=none", f"--data={__name__}:others"])
def test_other_test_images_have_no_baseline(finished: Path, capsys: Captured, key: str) -> None:
    """The run measured its original on its own test images."""
    assert measured(capsys, str(finished), key)["baseline"] is None
    assert measured(capsys, str(finished), "--loading.validation=0.3")["baseline"] is not None


def others() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """As many test images as digits has."""
    images, labels = torch.rand(360, 1, 8, 8), torch.arange(360) % 10
    return (images, labels), (images, labels)


def test_the_table(finished: Path, capsys: Captured) -> None:
    assert run(["evaluate", str(finished)]) == 0
    shown = capsys.readouterr().out
    assert f"{finished}, 360 test images of digits" in shown  # not folded
    assert "x fewer" in shown
    assert "points" in shown
    assert ", as measured now." in shown


def test_a_record_that_does_not_hold_is_told(
    finished: Path, tmp_path: Path, capsys: Captured
) -> None:
    """The figure of the compressed network is measured, whatever the run says."""
    copied = shutil.copytree(finished, tmp_path / "copy")
    log = copied / "events.jsonl"
    *lines, last = log.read_text().splitlines()
    finish = json.loads(last)
    finish["after"]["test_accuracy"] = 0.1234
    log.write_text("\n".join([*lines, json.dumps(finish)]) + "\n")
    assert run(["evaluate", str(copied)]) == 0
    assert "it recorded 12.34%, but " in capsys.readouterr().out


def test_a_file_with_its_model(finished: Path, capsys: Captured) -> None:
    """With the options of the model, the figures are those of the run."""
    file = str(finished / "model.safetensors")
    found = measured(capsys, file, "--model", "small_cnn", "--model_options.width", "4")
    of_run = measured(capsys, str(finished))
    assert found["baseline"] is found["recorded"] is None
    unknown = {"baseline": None, "recorded": None}
    assert found == {**of_run, **unknown}


def test_keys_may_come_first(finished: Path, capsys: Captured) -> None:
    found = measured(capsys, "--loading.validation", "0.3", str(finished))
    assert found["images"] == 360


MANY = """
import torch

def data():
    images, labels = torch.rand(120, 1, 8, 8), torch.arange(120) % 12
    return (images, labels), (images, labels)
"""


def test_top5_of_more_than_ten_classes(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run reports it at its end, and it is measured again."""
    (tmp_path / "many_classes.py").write_text(MANY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = (*QUICK, "--data", "many_classes:data", "--baseline.batch_size=32")
    assert run(["compress", "--out", "run", *options]) == 0
    shown = capsys.readouterr().out
    assert "validation accuracy, top-5" in shown
    assert "test accuracy, top-5" in shown
    finish = events(tmp_path / "run")[-1]
    for side in ("before", "after"):
        for part in ("test", "validation"):
            assert finish[side][f"{part}_accuracy"] <= finish[side][f"{part}_top5"] <= 1
    found = measured(capsys, "run")
    assert found["test_top5"] == finish["after"]["test_top5"]
    assert found["baseline_top5"] == finish["before"]["test_top5"]
    assert run(["evaluate", "run"]) == 0
    assert "test accuracy, top-5" in capsys.readouterr().out


def test_ten_classes_have_no_top5(finished: Path, capsys: Captured) -> None:
    assert "test_top5" not in events(finished)[-1]["after"]
    assert measured(capsys, str(finished))["test_top5"] is None


def test_missing_data_say_how_to_get_them(
    finished: Path, capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSPRUNE_DATA", str(tmp_path))
    assert run(["evaluate", str(finished), "--data", "cifar10"]) == 1
    said = capsys.readouterr().err
    assert f"CIFAR-10 is not in {tmp_path}. Get it with: rsprune data cifar10." in said
    assert "--loading.directory DIR" in said


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "Name a run directory or a file of weights: rsprune evaluate DIR"),
        (["nothing"], 1, "There is no 'nothing', neither a run directory nor a file."),
        (["RUN", "--model", "vgg16"], 2, "--model: the run's recipe names its model"),
        (["RUN/model.safetensors"], 2, "--model: a file holds weights, not code; name the model"),
        (["RUN/recipe.toml", "--model", "small_cnn"], 1, "damaged or not a safetensors file"),
        (["mine.pt", "--model", "small_cnn"], 1, "'mine.pt' is damaged or not a safetensors"),
        (["RUN/model.safetensors", "--model", "vgg16"], 1, "The model 'vgg16' does not take"),
        (["RUN", "--data", "digit"], 2, "--data: must be digits"),
        (["RUN", "--data", "cifar10", "--loading.directory", "."], 1, "rsprune data cifar10"),
        (["RUN", "--directory", "."], 2, "--directory: unknown option. Did you mean --loading.d"),
        (["empty"], 1, "'empty' is no run directory"),
        (["begun"], 1, "is not finished. Go on with it: rsprune compress --resume begun"),
    ],
)
def test_what_is_no_run(
    finished: Path,
    arguments: list[str],
    code: int,
    words: str,
    capsys: Captured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "begun"):
        (tmp_path / name).mkdir()
    (tmp_path / "begun" / "recipe.toml").write_text("seed = 3\n")
    torch.save({}, "mine.pt")
    arguments = [word.replace("RUN", str(finished)) for word in arguments]
    assert run(["evaluate", *arguments]) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert words in output.err
