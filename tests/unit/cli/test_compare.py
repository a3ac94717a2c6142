"""``rsprune compare``: what runs came to, side by side, and what was set differently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer")

from rsprune.cli.app import run
from tests.unit.report.events import events, write


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    """A finished run, and one with another penalty that is under way."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    write(tmp_path / "one")
    told = events()[:-1]
    told[0]["recipe"]["explore"]["lam"] = 0.25
    write(tmp_path / "two", told)
    return str(tmp_path / "one"), str(tmp_path / "two")


def test_the_table(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    (accuracy,) = (line for line in lines if "test accuracy" in line)
    assert "98.61 %" in accuracy
    (training,) = (line for line in lines if "training" in line)
    assert "61.2 s" in training
    assert "not finished" in training
    (lam,) = (line for line in lines if "explore.lam" in line)
    assert "0.25" in lam
    assert not any("explore.lr" in line for line in lines), "what is the same is left out"


def test_json(runs: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *runs, "--json"]) == 0
    one, two = json.loads(capsys.readouterr().out)
    finish = events()[-1]
    assert (one["run"], two["run"]) == runs
    assert (one["finished"], two["finished"]) == (True, False)
    assert one["measures"]["MACs"] == {side: finish[side]["macs"] for side in ("before", "after")}
    assert one["seconds"] == finish["seconds"]
    assert set(one["settings"]) == {"explore.lam"}
    assert two["settings"] == {"explore.lam": 0.25}


def test_one_run_is_not_enough(
    runs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", runs[0]]) == 2
    assert "at least two" in capsys.readouterr().err
    assert run(["compare", runs[0], str(tmp_path)]) == 1
    assert "not the directory of a run" in capsys.readouterr().err
