"""The command line, as tests use it: quick settings, and ``rsprune`` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# A run of a second: what it learns does not matter, what it says does.
QUICK = (
    "--model_options.width=4", "--baseline.epochs=1", "--explore.epochs=1", "--finetune.epochs=1",
    "--recursion.tolerance=1", "--compress.target_macs=0.5", "--threads=1", "--onnx=false",
)  # fmt: skip
CLI = (sys.executable, "-m", "rsprune.cli")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """``rsprune`` with ``arguments``, to its end."""
    return subprocess.run(
        [*CLI, *arguments],
        capture_output=True, text=True, check=False, timeout=120,
        **{"env": ENVIRONMENT, **options},
    )  # fmt: skip


def without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``rsprune`` where a package is not installed."""
    code = f"import sys; sys.modules[{module!r}] = None; from rsprune.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, check=False, timeout=120, env=ENVIRONMENT,
    )  # fmt: skip


def events(directory: Path) -> list[dict[str, Any]]:
    """What happened in a run so far."""
    path = directory / "events.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
