"""``rsprune search-lambda``: the table, the choice, and a search that is killed."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("typer")

from rsprune.cli.app import run
from tests.commands import CLI, ENVIRONMENT, events

Captured = pytest.CaptureFixture[str]
SHORT = ("--model_options.width=8", "--baseline.epochs=4", "--explore.epochs=4", "--threads=1")
SEARCH = ("--powers=0.3,1e-3,1e-5", "--tolerance=0.05")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def explored(directory: Path) -> list[tuple[float, int]]:
    """The penalty and the number of every epoch of sparse training."""
    told = [event for event in events(directory) if event.get("stage") == "explore"]
    lam = {event["round"]: event["lam"] for event in told if event["event"] == "stage"}
    return [(lam[e["round"]], e["epoch"]) for e in told if e["event"] == "epoch"]


def test_killed_and_resumed_it_prints_the_table_and_the_choice(
    here: Path, capsys: Captured
) -> None:
    """What is finished is not repeated; the settings are those it began with."""
    process = subprocess.Popen(
        [*CLI, "search-lambda", "--out", "x", *SHORT, *SEARCH],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT,
    )  # fmt: skip
    while (1e-3, 2) not in explored(here / "x"):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    before = events(here / "x")
    assert run(["search-lambda", "--resume", "x"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert events(here / "x")[: len(before) - 1] == before[:-1]
    assert explored(here / "x") == [
        *((0.3, n) for n in (1, 2, 3)),
        *((lam, n) for lam in (1e-3, 1e-5) for n in (1, 2, 3, 4)),
    ]
    rows = [line.split("\u2502") for line in output.out.splitlines() if "\u2502" in line]
    assert [row[1].strip() for row in rows] == ["0.3", "0.001", "1e-05"]
    assert [row[6].strip() for row in rows] == ["given up: the accuracy fell too far", "chosen", ""]
    assert "Use --explore.lam 0.001, the largest that keeps " in output.out
    assert run(["search-lambda", "--resume", "x", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["choice"] == 1e-3
    assert [one["lam"] for one in found["tried"]] == [0.3, 1e-3, 1e-5]
    # a search is no run, and its place is taken
    for arguments, words in (
        (["compress", "--resume", "x"], "holds a search. Go on with it: rsprune search-lambda"),
        (["compress", "--out", "x"], "rsprune search-lambda --resume x"),
        (["search-lambda", "--out", "x"], "rsprune search-lambda --resume x"),
    ):
        assert run(arguments) == 1
        assert words in capsys.readouterr().err


def test_when_none_keeps_the_accuracy_it_says_what_to_try(capsys: Captured) -> None:
    options = ("--model_options.width=8", "--baseline.epochs=4", "--explore.epochs=1")
    assert run(["search-lambda", "--out", "x", *options, "--threads=1", "--powers=0.5"]) == 0
    assert "Try smaller ones with --powers" in capsys.readouterr().out


@pytest.mark.parametrize("powers", ["", "much", "1e-3,,1e-4", "0", "-1", "nan", "1e-3;1e-4"])
def test_powers_are_numbers(here: Path, powers: str, capsys: Captured) -> None:
    assert run(["search-lambda", f"--powers={powers}"]) == 2
    assert "E.g. --powers 1e-2,1e-3,1e-4." in capsys.readouterr().err
    assert not (here / "runs").exists()


def test_trouble_before_any_training_leaves_nothing(here: Path, capsys: Captured) -> None:
    for arguments, words in (
        (["--storage", "nonsense"], "The study 'nonsense' cannot be opened: "),
        (["--model_options.widht=4"], "unexpected keyword argument 'widht'"),
        (["--explore.lambda=1"], "--explore.lambda: unknown option. Did you mean --explore.lam?"),
        (["--power=1"], "--power: unknown option. Did you mean --powers?"),
    ):
        assert run(["search-lambda", "--out", "x", *SHORT, *arguments]) in (1, 2)
        output = capsys.readouterr()
        assert output.err.count("\n") == 1
        assert words in output.err
        assert not (here / "x").exists() or not any((here / "x").iterdir())
