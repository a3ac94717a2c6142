"""``rsprune report``: the files, where they are, and one line for everything that goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer")

from rsprune.cli.app import run
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
