"""Two processes train one network: a run under torchrun ends like any other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

from tests.commands import ENVIRONMENT, events
from tests.integration.killing import OPTIONS

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without torch.distributed"
)


def two(*module: str) -> str:
    """What a module prints in two processes."""
    launcher = ["torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "-m", *module],
        env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_they_end_with_the_same_network(tmp_path: Path) -> None:
    """Also with the same statistics in its norms, which each took from its own images.

    One that was stopped in the middle of its epoch ends and tells as one that was not.
    """
    two("tests.integration.agreeing", str(tmp_path))
    for name in ("plain", "averaged", "pieces"):
        one, other = (tmp_path / f"{name}-{rank}.safetensors" for rank in (0, 1))
        assert one.read_bytes() == other.read_bytes(), name
    whole, pieces = (tmp_path / f"{name}-0.safetensors" for name in ("plain", "pieces"))
    assert whole.read_bytes() == pieces.read_bytes()
    told = json.loads((tmp_path / "events-0.json").read_text())
    (expected,), (found,) = told["plain"], told["pieces"]
    assert found["accuracy"] == expected["accuracy"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_two_processes_finish_a_run(tmp_path: Path) -> None:
    """With images that grow, and views whose scores are kept."""
    settings = [f"--{key}={value}" for key, value in OPTIONS.items()]
    found = json.loads(
        two(
            "rsprune.cli", "compress", "--out", str(tmp_path / "run"), *settings,
            "--baseline.small=0.5", "--device=cpu", "--onnx=false", "--json",
        )
    )  # fmt: skip
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    assert found["after"]["macs"] < found["before"]["macs"]
    epochs = [e["epoch"] for e in events(tmp_path / "run") if e["event"] == "epoch"]
    assert epochs == [1, 2, 1, 2, 3, 1, 2, 3, 1, 2]
    hidden = [path.name for path in (tmp_path / "run").glob(".state*")]
    assert not hidden, "the second process leaves nothing behind"
