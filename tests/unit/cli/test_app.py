"""The command line as a whole: help, slips in names, exit codes, what is imported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")

import rsprune
from rsprune.cli.app import run
from tests.commands import CLI, ENVIRONMENT, command, without

COMMANDS = (
    "compress", "recipe", "search-lambda", "evaluate", "latency", "profile", "report", "export",
    "data", "doctor",
)  # fmt: skip


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_overview_names_every_command(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    for name in COMMANDS:
        assert f" {name} " in shown
    assert "Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: rsprune {name}" in shown
    assert "Example" in shown
    assert len(re.findall(rf"\n +rsprune {name}", shown)) >= 1


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"{rsprune.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compres"], "No such command 'compres'. Did you mean 'compress'"),
        (["searchlambda"], "Did you mean 'search-lambda'?"),
        (["--verison"], "No such option: --verison"),
        (["profile", "vgg16", "--jsn"], "No such option: --jsn"),
        (["compress", "--out"], "requires an argument"),
        (["search-lambda", "--tolerance", "much"], "'--tolerance': Input should be a valid number"),
        (["search-lambda", "--tolerance", "2"], "less than or equal to 1"),
    ],
)
def test_slips_are_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("rsprune: ")
    assert output.err.count("\n") == 1
    assert words in output.err


def test_an_error_nobody_foresaw_names_its_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.safetensors").write_text("")
    (tmp_path / "recipe.toml").write_text("[loading]\ndirectory = 'x'\n")
    (tmp_path / "events.jsonl").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run(["compress", "--resume", "."]) == 1
    assert "cannot be read: Is a directory" in capsys.readouterr().err


def test_help_needs_none_of_the_heavy_libraries() -> None:
    """It would take seconds, and fail where one of them is missing."""
    code = (
        "import sys; from rsprune.cli.app import run; run(['--help'])\n"
        "heavy = {'accelerate', 'optuna', 'plotly', 'pydantic', 'onnx', 'sklearn'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("typer", ["--help"]),
        ("accelerate", ["evaluate", "x"]),
        ("optuna", ["search-lambda"]),
        ("jinja2", ["compress"]),
    ],
)
def test_a_missing_package_names_its_extra(module: str, arguments: list[str]) -> None:
    done = without(module, *arguments)
    assert done.returncode == 1
    assert done.stderr == f'rsprune: this needs {module}: pip install "rsprune[cli]"\n'


def test_a_command_does_not_need_the_packages_of_others() -> None:
    done = without("optuna", "compress", "--nonsense", "1")
    assert done.stderr == "rsprune: --nonsense: unknown option.\n"


def test_output_can_be_cut_off() -> None:
    """As ``rsprune recipe | head -1`` does."""
    line = f"{' '.join(CLI)} recipe | head -1"
    done = subprocess.run(
        line, shell=True, capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.stdout.startswith("model = ")
    assert "Traceback" not in done.stderr


def test_the_module_is_the_command() -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"{rsprune.__version__}\n")
