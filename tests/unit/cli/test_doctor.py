"""``rsprune doctor``: what is there, what is missing, and the exit code."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("typer")

import torch

from rsprune.cli import doctor as module
from rsprune.cli.app import run
from rsprune.cli.doctor import EXTRAS, examine

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    told = json.loads(capsys.readouterr().out)
    return {f"{check['area']} {check['name']}": check for check in told["checks"]}


def test_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    """Where these tests run, everything needed is there, and versions are the real ones."""
    assert run(["doctor", "--json"]) == 0
    checks = found(capsys)
    assert checks["version torch"]["found"] == torch.__version__
    assert all(check["ok"] for check in checks.values() if check["needed"])
    assert all(check["ok"] or check["remedy"] for check in checks.values())


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    """People get a table and a verdict."""
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"torch +│ ok +│", out)
    assert "rsprune works here" in out


def test_a_missing_option_is_not_an_illness(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only some commands need is missing with a remedy, and the exit code stays 0."""
    monkeypatch.setitem(module.EXTRAS, "export", ("onnx", "no-such-package"))
    assert run(["doctor", "--json"]) == 0
    check = found(capsys)["version no-such-package"]
    assert (check["ok"], check["remedy"]) == (False, 'pip install "rsprune[export]"')


def test_something_needed_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the exit code is 1, and the last line names it."""
    monkeypatch.setitem(module.EXTRAS, "", ("torch", "no-such-package"))
    assert run(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.rstrip().splitlines()[-1].startswith("Broken: no-such-package.")


def test_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that is not there yet can be made; one below a file cannot."""
    monkeypatch.setenv("RSPRUNE_DATA", str(tmp_path / "not" / "yet"))
    data = {check.name: check for check in examine() if check.area == "writable"}["data"]
    assert (data.ok, data.found) == (True, str(tmp_path / "not" / "yet"))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RSPRUNE_DATA", str(tmp_path / "file" / "below"))
    data = {check.name: check for check in examine() if check.area == "writable"}["data"]
    assert (data.ok, data.needed) == (False, False)


def test_no_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported, not raised."""

    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    check = next(check for check in examine() if check.name == "temporary files")
    assert (check.ok, check.needed, check.found) == (
        False, True, "No usable temporary directory found",
    )  # fmt: skip


def test_extras_are_the_projects() -> None:
    """The packages that doctor looks for are those that pyproject.toml lists."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads(PROJECT.read_text())["project"]
    listed = {"": project["dependencies"], **project["optional-dependencies"]}
    for extra, packages in EXTRAS.items():
        always = [line for line in listed[extra] if ";" not in line and "rsprune[" not in line]
        assert {re.split(r"[<>=~ ]", line)[0] for line in always} == set(packages)
