"""Two processes train one network: a run under torchrun ends like any other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

from tests.integration.killing import OPTIONS, events


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without torch.distributed")
def test_two_processes_finish_a_run(tmp_path: Path) -> None:
    settings = [f"--{key}={value}" for key, value in OPTIONS.items()]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone",
        "-m", "rsprune.cli", "compress", "--out", str(tmp_path / "run"), *settings,
        "--device=cpu", "--onnx=false", "--json",
    ]  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["after"]["macs"] < found["before"]["macs"]
    epochs = [e["epoch"] for e in events(tmp_path / "run") if e["event"] == "epoch"]
    assert epochs == [1, 2, 1, 2, 3, 1, 2, 3, 1, 2]
    hidden = [path.name for path in (tmp_path / "run").glob(".state*")]
    assert not hidden, "the second process leaves nothing behind"
