"""On real networks: SGD's accuracy at 70 % zeros or more, and more zeros than Prox-SG."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.sparse_training import SETTINGS, Outcome, run
from rsprune.data.fashion_mnist import DEBIAN_DIRECTORY

ROOT = Path(__file__).parents[2]


def outcomes(name: str, methods: tuple[str, ...], seed: int = 0) -> dict[str, Outcome]:
    setting = SETTINGS[name]
    data = setting.load()
    return {method: run(method, data, setting, seed, lambda: None) for method in methods}


@pytest.mark.parametrize("seed", [0, 1])
def test_digits(seed: int) -> None:
    found = outcomes("digits", ("SGD", "Prox-SG", "OBProx-SG"), seed)
    assert found["OBProx-SG"].zeros >= 0.7
    assert found["OBProx-SG"].accuracy >= found["SGD"].accuracy - 0.005
    assert found["OBProx-SG"].zeros >= found["Prox-SG"].zeros
    assert found["SGD"].zeros == 0


@pytest.mark.skipif(
    not DEBIAN_DIRECTORY.is_dir(), reason="needs Debian's dataset-fashion-mnist (make setup)"
)
def test_fashion_mnist() -> None:
    """Data that is not fitted perfectly: here the orthant phases make the difference."""
    found = outcomes("fashion-mnist", ("SGD", "Prox-SG", "OBProx-SG"))
    assert found["OBProx-SG"].zeros >= 0.7
    assert found["OBProx-SG"].accuracy >= found["SGD"].accuracy - 0.005
    density = {name: 1 - outcome.zeros for name, outcome in found.items()}
    assert density["OBProx-SG"] <= 0.75 * density["Prox-SG"]


def test_a_run_repeats_bit_for_bit() -> None:
    first, second = (outcomes("digits", ("OBProx-SG",))["OBProx-SG"] for _ in range(2))
    assert (first.objective, first.zeros, first.accuracy) == (
        second.objective,
        second.zeros,
        second.accuracy,
    )


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_demo_prints_both_methods_side_by_side() -> None:
    done = demo("--epochs", "4", "--lam", "3e-3")
    assert done.returncode == 0, done.stderr
    for expected in ("Prox-SG", "OBProx-SG", "test accuracy", "conv3.weight", "all layers"):
        assert expected in done.stdout


def test_demo_warns_when_the_penalty_cannot_reach() -> None:
    assert "cannot become zero" in demo("--epochs", "1", "--lam", "1e-6").stderr


@pytest.mark.parametrize(
    ("arguments", "names"), [(("--epochs", "0"), "'epochs'"), (("--lam", "-1"), "'lam'")]
)
def test_demo_refuses_bad_options_without_a_traceback(
    arguments: tuple[str, str], names: str
) -> None:
    done = demo(*arguments)
    assert done.returncode == 2
    assert names in done.stderr
    assert "Traceback" not in done.stderr
