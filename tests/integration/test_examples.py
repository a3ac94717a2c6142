"""The examples run as they are, and compress what they claim to compress."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = re.compile(
    r"^(before|after): ([\d,]+) parameters, ([\d,]+) MACs, test accuracy ([\d.]+)$"
)

# torchvision, which timm and others import, may lack its compiled part where the tests run.
RUNNER = """
import importlib.util, runpy, sys
if importlib.util.find_spec("torchvision"):
    from tests.zoo import import_torchvision
    import_torchvision()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(name: str, *options: str) -> str:
    """What an example prints, run on its own."""
    process = subprocess.run(
        [sys.executable, "-c", RUNNER, str(ROOT / "examples" / name), *options],
        cwd=ROOT, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


def figures(text: str) -> dict[str, tuple[int, int, float]]:
    """Parameters, MACs and accuracy before and after."""
    found = {}
    for line in text.splitlines():
        if match := FIGURES.match(line):
            name, params, macs, accuracy = match.groups()
            found[name] = (
                int(params.replace(",", "")),
                int(macs.replace(",", "")),
                float(accuracy),
            )
    return found


@pytest.mark.parametrize(
    ("name", "options", "package", "fewer_macs"),
    [
        ("lightning_digits.py", ["--rounds", "1", "--lam", "6e-4"], "lightning", 2.5),
        ("hf_trainer.py", ["--rounds", "1", "--lam", "6e-4"], "transformers", 2.5),
        ("timm_model.py", [], "timm", 2.0),
    ],
)
def test_an_example_compresses(
    name: str, options: list[str], package: str, fewer_macs: float
) -> None:
    """So many times fewer multiply-accumulates, at less than one point of test accuracy."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    check(run(name, *options), fewer_macs)


def test_the_plain_example_compresses_and_goes_on_in_its_directory(tmp_path: Path) -> None:
    """By a factor of five; a second call finds everything done, and prints the same."""
    options = ["--directory", str(tmp_path / "run")]
    first = run("plain_pytorch.py", *options)
    check(first, fewer_macs=5.0)
    state = (tmp_path / "run" / "state.json").read_bytes()
    assert run("plain_pytorch.py", *options) == first
    assert (tmp_path / "run" / "state.json").read_bytes() == state


def check(text: str, fewer_macs: float) -> None:
    found = figures(text)
    before, after = found["before"], found["after"]
    assert before[1] / after[1] >= fewer_macs
    assert after[0] < before[0]
    assert before[2] > 0.97
    assert after[2] > before[2] - 0.01


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_an_example_explains_itself(path: Path) -> None:
    """It says what it is and how it is run, in its first lines."""
    text = path.read_text()
    assert text.startswith('"""')
    assert f"python examples/{path.name}" in text.split('"""')[1]
