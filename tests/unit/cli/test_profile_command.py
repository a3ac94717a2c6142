"""``rsprune profile``: its table, its JSON, and one line for everything that goes wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")

import rsprune
from rsprune.cli.app import run

NETS = """
from torch import nn
def tiny(): return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 2))
def broken(): return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(5, 4, 1))
def crash(): raise KeyError("no such thing")
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's in the current directory."""
    name = f"nets_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def command(*arguments: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """``rsprune`` in a process of its own."""
    return subprocess.run(
        [sys.executable, *flags, "-m", "rsprune.cli", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_table() -> None:
    """Every layer with its shape, weights, MACs and share, and the totals; nothing on stderr."""
    done = command("profile", "vgg16")
    assert (done.returncode, done.stderr) == (0, "")
    row = next(line for line in done.stdout.splitlines() if "features.3 " in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        "features.3", "1x64x32x32", "36,864", "37,748,736", "12.0%",
    ]  # fmt: skip
    total = next(line for line in done.stdout.splitlines() if "total" in line)
    assert "15,239,872" in total
    assert "313,725,952" in total
    assert "15,253,578 parameters" in done.stdout


def test_json(nets: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same numbers for programs; --input and --batch make the input."""
    assert run(["profile", f"{nets}:tiny", "--input", "1x4x4", "--batch", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["input_shape"] == [3, 1, 4, 4]
    assert (found["weights"], found["macs"], found["params"]) == (68, 3 * (144 + 32), 74)
    assert [layer["name"] for layer in found["layers"]] == ["0", "2"]


def test_module_names_are_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe or a file, long names stay on one line."""
    assert run(["profile", "resnet50"]) == 0
    assert "layer4.0.downsample.0" in capsys.readouterr().out


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """--help of the whole, and of the command with its examples; no arguments ask for it too."""
    assert run(["--help"]) == 0
    assert "profile" in capsys.readouterr().out
    assert run(["profile", "--help"]) == 0
    assert "rsprune profile vgg16" in capsys.readouterr().out
    assert run([]) == 0
    assert "Usage" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints the version alone."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == rsprune.__version__


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["profile"], "MODEL"),
        (["profile", "vgg17"], "Did you mean vgg16"),
        (["profile", "vgg16", "--input", "3x32x"], "3x32x"),
        (["profile", "vgg16", "--input", "0x32x32"], "0x32x32"),
        (["profile", "vgg16", "--batch", "0"], "--batch"),
        (["profile", "vgg16", "--size", "3"], "--size"),
        (["profil", "vgg16"], "profil"),
        (["profile", "no_such_package:Net"], "no_such_package"),
    ],
    ids=" ".join,
)
def test_bad_input(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr that names the culprit, and exit code 2."""
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rsprune: ")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(
    ("model", "said"), [("broken", "in '1' (Conv2d)"), ("crash", "no such thing")]
)
def test_failing_model(
    nets: str, model: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr, and exit code 1."""
    assert run(["profile", f"{nets}:{model}", "--input", "1x4x4"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err


def test_never_a_traceback() -> None:
    """Neither for bad input nor for a wrong shape, in a process of its own."""
    for arguments, code in ((["vgg17"], 2), (["vgg16", "--input", "4x32x32"], 1)):
        done = command("profile", *arguments)
        assert done.returncode == code
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_its_packages(package: str) -> None:
    """Without typer or rich, the command says what to install."""
    script = (
        f"import sys; sys.modules['{package}'] = None\n"
        "from rsprune.cli import main; sys.argv = ['rsprune']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert 'pip install "rsprune[cli]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_rsprune_leaves_the_command_line_out() -> None:
    """import rsprune loads neither typer nor rich."""
    script = "import sys, rsprune; sys.exit(bool({'typer', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
