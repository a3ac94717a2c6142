"""``rsprune report``: the files, where they are, and one line for everything that goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("typer")

from rsprune.cli.app import run
from rsprune.models import build
from tests.commands import QUICK
from tests.commands import events as told
from tests.unit.report.events import events, write


def test_prints_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both paths, one a line; the files are there."""
    assert run(["report", str(write(tmp_path))]) == 0
    out, err = capsys.readouterr()
    paths = [Path(line) for line in out.splitlines()]
    assert paths == [tmp_path / "report.html", tmp_path / "report.md"]
    assert all(path.is_file() for path in paths)
    assert err == ""


def test_json_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second report takes the first one's place, and tells what has happened since."""
    write(tmp_path, events()[:10])
    assert run(["report", str(tmp_path), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert "not finished" in Path(first["markdown"]).read_text()
    assert run(["report", str(write(tmp_path)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert "not finished" not in Path(first["markdown"]).read_text()


def test_open_without_a_browser(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--open asks for a browser, and says so if there is none."""
    asked: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: bool(asked.append(url)))
    assert run(["report", str(write(tmp_path)), "--open"]) == 0
    assert asked == [(tmp_path / "report.html").as_uri()]
    assert "no browser" in capsys.readouterr().err


def test_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr that names the directory and the file, and exit code 1."""
    assert run(["report", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert str(tmp_path) in err
    assert "events.jsonl" in err


def test_a_published_run_is_measured_anywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the run, its starting weights or its state; and there is nothing to resume."""
    made, other = tmp_path / "made", tmp_path / "elsewhere"
    made.mkdir()
    other.mkdir()
    monkeypatch.chdir(made)
    torch.save(build("small_cnn", width=4).state_dict(), "mine.pt")
    assert run(["compress", "--out", "run", "--weights", "mine.pt", *QUICK]) == 0
    finish = told(Path("run"))[-1]
    capsys.readouterr()
    assert run(["report", "run", "--to", str(other / "results" / "mine"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["directory"] == str(other / "results" / "mine")
    assert {"model.safetensors", "recipe.toml", "events.jsonl"} <= set(found["files"])
    made.rename(tmp_path / "gone")
    monkeypatch.chdir(other)
    before = sorted(Path("results/mine").iterdir())

    assert run(["evaluate", "results/mine", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["test_accuracy"] == finish["after"]["test_accuracy"]
    assert measured["baseline"] == finish["before"]["test_accuracy"]
    assert measured["after"]["macs"] == finish["after"]["macs"]
    assert measured["before"]["weights"] == finish["before"]["weights"]

    assert run(["compress", "--resume", "results/mine"]) == 1
    said = capsys.readouterr().err
    assert "'results/mine' is a finished run" in said
    assert "rsprune evaluate results/mine" in said
    assert sorted(Path("results/mine").iterdir()) == before

    assert run(["report", "results/mine"]) == 0
    assert Path("results/mine/report.html").is_file()


def test_a_publication_has_no_page_to_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(write(tmp_path / "run")), "--to", "x", "--open"]) == 2
    assert "--open: a published run has no page" in capsys.readouterr().err


def test_an_unfinished_run_is_not_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mine"
    assert run(["report", str(write(tmp_path / "run", events()[:9])), "--to", str(target)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not target.exists()
