"""``rsprune compress`` in the hands of someone who types everything wrong."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("typer")

from rsprune.cli.app import run
from rsprune.cli.settings import parse_settings
from rsprune.engine.recipe import read_recipe
from rsprune.errors import RecipeError
from tests.commands import CLI, ENVIRONMENT, QUICK, command, events, without

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs go to a directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "finished"
    assert run(["compress", "--out", str(directory), *QUICK]) == 0
    return directory


def refused(arguments: list[str], capsys: Captured, code: int = 2) -> list[str]:
    """The lines with which a command is refused, and nothing else."""
    assert run(["compress", *arguments]) == code
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    lines = output.err.splitlines()
    assert all(line.startswith("rsprune: ") for line in lines)
    return [line.removeprefix("rsprune: ") for line in lines]


# -- the recipe ---------------------------------------------------------------------------------


def test_every_mistake_of_file_and_options_at_once(here: Path, capsys: Captured) -> None:
    (here / "bad.toml").write_text(
        'model = "smallcnn"\nonnx = "no"\nseed = true\n'
        '[explore]\nlr = nan\noptimizer = "obprox"\n[finetune]\nepochs = 2.5\n[explor]\nlam = 1\n'
    )
    found = refused(
        [
            "bad.toml", "--data", "cifar", "--explore.epochs=-1", "--finetune.lr", "fast",
            "--recursion.round", "2", "--compress.inherit=perhaps", "--lr", "1", "--finetune.ema",
        ],
        capsys,
    )  # fmt: skip
    text = "\n".join(found)
    for words in (
        "--recursion.round: unknown option. Did you mean --recursion.rounds?",
        "--lr: unknown option. Did you mean --baseline.lr or --explore.lr or --finetune.lr?",
        "--finetune.ema: has no value; write --finetune.ema VALUE. finetune.ema: decay of",
        "bad.toml: model: must be a known model: small_cnn,",
        "Got 'smallcnn'. Did you mean small_cnn?",
        "--data: must be digits, fashion-mnist, cifar10,",
        "Got 'cifar'. Did you mean 'cifar10'?",
        "bad.toml: onnx: must be true or false. Got 'no'. onnx: whether",
        "bad.toml: seed: must be a whole number. Got True.",
        "bad.toml: explore.lr: must be a finite number. Got nan. explore.lr: the highest",
        "Got 'obprox'. Did you mean 'obprox-sg'?",
        "--explore.epochs: must be greater than or equal to 1. Got -1.",
        "--finetune.lr: must be a number. Got 'fast'.",
        "bad.toml: finetune.epochs: must be a whole number",
        "--compress.inherit: must be true or false. Got 'perhaps'.",
        "bad.toml: [explor]: unknown table. Did you mean explore",
    ):
        assert words in text, (words, text)
    assert len(found) == 14
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.toml", "b.toml"], "'a.toml' and 'b.toml': one file is enough"),
        (["nothing.toml"], "nothing.toml: there is no such file."),
        (["."], ".: cannot be read: Is a directory."),
        (["latin.toml"], "latin.toml: cannot be read: it is not UTF-8"),
        (["half.toml"], "half.toml: is no TOML: "),
        (["table.toml", "--explore.lam=1"], "table.toml: explore: must be a table. Got 3."),
        (["-seed", "3"], "-seed: options begin with two dashes, as --seed."),
        (["--resum", "x"], "--resum: unknown option. Did you mean --resume?"),
        (["--jsno"], "--jsno: unknown option. Did you mean --json?"),
        (["--lambda=1"], "--lambda: unknown option. Did you mean --"),
        (["--explore.milestones=0.5,2"], "--explore.milestones: must be less than or equal to 1"),
        (["--explore.milestones", "half"], "--explore.milestones: must be a list"),
        (["--explore.lr", "inf"], "--explore.lr: must be a finite number. Got inf."),
        (["--loading.workers", "none", "--seed", "none"], "--seed: must be a whole number"),
    ],
)
def test_slips(here: Path, arguments: list[str], words: str, capsys: Captured) -> None:
    (here / "latin.toml").write_bytes('model = "gr\u00fcn"'.encode("latin-1"))
    (here / "half.toml").write_text('model = "small_cnn')
    (here / "table.toml").write_text("explore = 3")
    found = refused(arguments, capsys)
    assert len(found) == 1
    assert found[0].startswith(words)


def test_values_are_understood_as_they_are_usually_written() -> None:
    file, options = parse_settings(
        [
            "my.toml", "--explore.lr", ".5", "--seed=7", "--onnx", "False", "--compile", "true",
            "--explore.milestones", "0.25,0.5", "--finetune.milestones=[0.1]",
            "--loading.directory", "2024-01-01", "--loading.size", "none",
            "--model-options.width", "8", "--model_options.kind", "b1", "--explore.lam", "1E-4",
        ]
    )  # fmt: skip
    recipe = read_recipe(None, options)
    assert file == Path("my.toml")
    assert (recipe.explore.lr, recipe.seed, recipe.explore.lam) == (0.5, 7, 1e-4)
    assert (recipe.onnx, recipe.compile) == (False, True)
    assert recipe.explore.milestones == (0.25, 0.5)
    assert recipe.finetune.milestones == (0.1,)
    assert (recipe.loading.directory, recipe.loading.size) == ("2024-01-01", None)
    assert recipe.model_options == {"width": 8, "kind": "b1"}


def test_negative_numbers_are_values() -> None:
    assert parse_settings(["--seed", "-5"]) == (None, {"seed": "-5"})
    with pytest.raises(RecipeError, match=r"--seed: must be greater than or equal to 0\. Got -5"):
        read_recipe(None, {"seed": "-5"})


# -- data, models and weights -------------------------------------------------------------------

NETS = """
from torch import nn
def five(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
def crash(): raise KeyError("no such thing")
class Two(nn.Module):
    def forward(self, x): return x, x
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--model", "NETS:five"],
            "gives (2, 5)' instead. The labels of the data run from 0 to 9",
        ),
        (["--model", "NETS:Two"], "which returns a tuple"),
        (["--model", "NETS:crash"], "raised KeyError: 'no such thing'"),
        (["--model", "NETS:nothing"], "a factory in nets"),
        (["--model", "no.such.package:net"], "Importing 'no.such.package' raised"),
        (["--model", "vgg16"], "The model 'vgg16' does not take images of 1x8x8: RuntimeError"),
        (["--model_options.widht", "4"], "unexpected keyword argument 'widht'"),
        (["--data", "cifar10", "--loading.directory", "."], "Get it with: rsprune data cifar10"),
        (["--data", "imagefolder:nowhere"], "nowhere"),
        (["--loading.directory", "x"], "left out for digits"),
        (["--weights", "nothing.pt"], "nothing.pt' of weights"),
    ],
)
def test_a_run_that_cannot_begin_leaves_nothing(
    here: Path, arguments: list[str], words: str, capsys: Captured
) -> None:
    """So that the same command, mended, is not refused."""
    name = f"nets_{here.name}"
    (here / f"{name}.py").write_text(NETS)
    arguments = [argument.replace("NETS", name) for argument in arguments]
    assert run(["compress", "--out", "mine", *arguments]) in (1, 2)
    found = capsys.readouterr().err
    assert found.startswith("rsprune: ")
    assert found.count("\n") == 1
    assert words in found
    assert not (here / "mine").exists()


# -- losses that explode --------------------------------------------------------------------------


def test_a_baseline_that_diverges_says_what_to_change(capsys: Captured) -> None:
    found = refused(["--out", "x", *QUICK, "--baseline.lr=1e9"], capsys, code=1)
    assert len(found) == 1
    assert "There is no baseline to compress: the loss" in found[0]
    assert "lower baseline.lr (now 1e+09) or set baseline.clip" in found[0]


@pytest.mark.parametrize("stage", ["explore", "finetune"])
def test_a_later_stage_that_diverges_keeps_the_best(stage: str, capsys: Captured) -> None:
    assert run(["compress", "--out", "x", *QUICK, f"--{stage}.lr=1e9", f"--{stage}.epochs=2"]) == 0
    output = capsys.readouterr()
    assert f"lower {stage}.lr (now 1e+09) or set {stage}.clip" in output.err
    finish = events(Path("x"))[-1]
    if stage == "explore":
        assert finish["after"]["test_accuracy"] == finish["before"]["test_accuracy"]
        assert "The network is not smaller than before" in output.out
        assert "as many" in output.out
    else:
        assert finish["after"]["macs"] < finish["before"]["macs"]


# -- directories ----------------------------------------------------------------------------------


def test_directories_that_cannot_be_used(here: Path, finished: Path, capsys: Captured) -> None:
    (here / "full").mkdir()
    (here / "full" / "x").touch()
    (here / "file").touch()
    for directory, words in (
        (str(finished), f"Go on with it: rsprune compress --resume {finished}"),
        ("full", "'full' is not empty"),
        ("file", "'file' cannot be made"),
        ("file/x", "'file/x' cannot be made"),
        ("/proc/x", "'/proc/x' cannot be made"),
    ):
        found = refused(["--out", directory, *QUICK], capsys, code=1)
        assert len(found) == 1
        assert words in found[0]


def test_resume_takes_no_other_settings(finished: Path, capsys: Captured) -> None:
    found = refused(["--resume", str(finished), "--seed", "3", "--model", "vgg16"], capsys)
    assert found == [
        f"--resume {finished}: goes on with the recipe that is there, so leave out: seed, model."
    ]


@pytest.mark.parametrize("name", ["nothing", "file", "empty"])
def test_resume_of_what_is_no_run(here: Path, name: str, capsys: Captured) -> None:
    (here / "file").touch()
    (here / "empty").mkdir()
    found = refused(["--resume", name], capsys, code=1)
    assert found == [f"'{name}' is no run directory: it has no recipe.toml."]


def test_a_directory_has_one_run_at_a_time(here: Path, capsys: Captured) -> None:
    process = subprocess.Popen(
        [*CLI, "compress", "--out", "x", *QUICK, "--baseline.epochs=1000"],
        stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
    )  # fmt: skip
    while not events(here / "x"):
        assert process.poll() is None
        time.sleep(0.05)
    found = refused(["--resume", "x"], capsys, code=1)
    assert found == ["Another process is running in 'x'."]
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopped; nothing is lost. Go on with: rsprune compress --resume x\n" in output


def limit(size: int) -> Any:
    """Files cannot grow beyond a size, as on a full disk."""

    def apply() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return apply


def test_a_full_disk_leaves_a_run_that_goes_on(
    here: Path, finished: Path, capsys: Captured
) -> None:
    """It ends with the bits of a run that had the space."""
    done = command("compress", "--out", "x", *QUICK, preexec_fn=limit(4000))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "could not be written" in done.stderr
    assert "File too large" in done.stderr
    assert "Go on with: rsprune compress --resume x" in done.stderr
    assert run(["compress", "--resume", "x", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["directory"] == "x"
    for name in ("model.safetensors", "history.json"):
        assert (here / "x" / name).read_bytes() == (finished / name).read_bytes()


def test_a_run_that_cannot_write_says_so(here: Path, finished: Path, capsys: Captured) -> None:
    """Something is in the place of a file; without it, the run goes on."""
    shutil.copytree(finished, "x")
    for name in ("events.jsonl", "history.json"):
        (here / "x" / name).unlink()
    (here / "x" / "history.json").mkdir()
    found = refused(["--resume", "x"], capsys, code=1)
    assert "'x/history.json' could not be written" in found[-1]
    assert found[-1].endswith("Go on with: rsprune compress --resume x")
    (here / "x" / "history.json").rmdir()
    assert run(["compress", "--resume", "x"]) == 0


# -- what is printed ------------------------------------------------------------------------------


def test_lines_where_there_is_no_terminal(capsys: Captured) -> None:
    name = "a-very-long-name-" * 10
    assert run(["compress", "--out", name, *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "baseline, 1 epoch"
    assert lines[1].startswith("  epoch 1/1  loss ")
    assert f"  {name}/report.html" in lines  # not folded
    assert any(line.startswith("The network is now ") for line in lines)
    assert not any("\x1b" in line for line in lines)


def test_json_is_all_there_is_on_stdout(capsys: Captured) -> None:
    assert run(["compress", "--out", "x", *QUICK, "--json"]) == 0
    output = capsys.readouterr()
    found = json.loads(output.out)
    assert found["after"] == events(Path("x"))[-1]["after"]
    assert found["latency"] == json.loads(Path("x/latency.json").read_text())["rows"]
    assert [(row["runtime"], row["batch"]) for row in found["latency"]] == [("torch", 1)]
    assert "epoch 1/1" in output.err


@pytest.mark.parametrize(
    ("speeds", "accuracy", "said"),
    [
        ({"torch": 1.3}, 0.99, "4.0 times smaller and answers 1.3 times faster on this"),
        ({"torch": 0.5}, 0.99, "takes 2.0 times as long to answer on this"),
        ({"torch": 1.02}, 0.99, "answers as fast as before on this"),
        ({"torch": 4, "onnxruntime": 2}, 0.99, "2.0 times faster on this machine's processor (onn"),
        ({"torch": 1.3}, 0.985, ", at 0.5 points of test accuracy lost (98.5%)."),
        ({"torch": 1.3}, 0.995, ", with 0.5 points of test accuracy gained (99.5%)."),
        ({"torch": 1.3}, 0.9901, ", with no test accuracy lost (99.0%)."),
    ],
)
def test_the_last_sentence_is_honest(speeds: dict[str, float], accuracy: float, said: str) -> None:
    """Of size, speed in the runtime that is fastest in the end, and accuracy."""
    from rsprune.cli.compress import sentence
    from rsprune.metrics.comparison import LatencyRow
    from rsprune.metrics.latency import Latency

    seconds = {"torch": 0.01, "onnxruntime": 0.001}
    rows = [
        LatencyRow(
            name, 1, 1, Latency(seconds[name] * ratio, 0, 0, 9), Latency(seconds[name], 0, 0, 9),
            ratio, 1.0,
        )
        for name, ratio in speeds.items()
    ]  # fmt: skip
    finish = {
        "before": {"params": 4000, "test_accuracy": 0.99},
        "after": {"params": 1000, "test_accuracy": accuracy},
    }
    assert said in sentence(finish, rows)


def test_bars_on_a_terminal() -> None:
    """With loss, accuracy, zeros, phase, and no exception."""
    main, other = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm-256color", "COLUMNS": "150"}
    process = subprocess.Popen(
        [*CLI, "compress", "--out", "x", *QUICK, "--explore.epochs=4"],
        stdout=other, stderr=other, env=environment,
    )  # fmt: skip
    os.close(other)
    pieces: list[bytes] = []

    def read() -> None:
        while True:
            try:
                piece = os.read(main, 65536)
            except OSError:  # the other end is closed
                return
            pieces.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    assert process.wait(timeout=120) == 0
    reader.join()
    os.close(main)
    shown = b"".join(pieces).decode()
    for words in ("explore 1, lambda 0.001", "\u2501", "epoch 4/4", "loss", "% zero", "orthant"):
        assert words in shown
    assert "Traceback" not in shown
    assert "before and after" in shown


def test_the_same_seed_gives_the_same_bits(finished: Path) -> None:
    assert run(["compress", "--out", "x", *QUICK]) == 0
    name = "model.safetensors"
    assert (Path("x") / name).read_bytes() == (finished / name).read_bytes()


def test_trained_weights_take_the_place_of_a_baseline(capsys: Captured) -> None:
    """The stage is left out, whatever epochs the recipe gives it; the file is known by its sum."""
    from rsprune.models import build

    torch.save(build("small_cnn", width=4).state_dict(), "mine.pt")
    assert run(["compress", "--out", "x", "--weights", "mine.pt", *QUICK]) == 0
    assert "baseline, " not in capsys.readouterr().out
    digest = hashlib.sha256(Path("mine.pt").read_bytes()).hexdigest()
    assert events(Path("x"))[0]["weights_sha256"] == digest


def test_a_missing_exporter_costs_the_file_only() -> None:
    done = without("onnx", "compress", "--out", "x", *QUICK, "--onnx=true")
    assert done.returncode == 0, done.stderr
    assert "The network is now " in done.stdout
    assert "model.onnx was not written: ONNX needs a package that is not" in done.stdout
    assert 'pip install "rsprune[export]"' in done.stdout
