"""A run that is killed at any point, and resumed, ends with the bits of one that never was."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.commands import CLI, ENVIRONMENT, events
from tests.integration.killing import OPTIONS

ROOT = Path(__file__).parents[2]
SETTINGS = [f"--{key}={value}" for key, value in OPTIONS.items()]


def told(directory: Path) -> list[dict[str, Any]]:
    """The events without what a clock says."""
    clock = ("time", "seconds", "before", "after")
    return [
        {k: v for k, v in event.items() if k not in clock or event["event"] == "round"}
        for event in events(directory)
    ]


def compress(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [*CLI, "compress", *arguments]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts, by the command line."""
    directory = tmp_path_factory.mktemp("runs") / "whole"
    process = compress("--out", str(directory), *SETTINGS, "--onnx=false")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    return directory


def same_run(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "history.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    first, second = told(one), told(other)
    for start in (first[0], second[0]):
        start["recipe"].pop("onnx")
    assert first == second


def test_kills_at_random_points_leave_no_trace(whole: Path, tmp_path: Path) -> None:
    """At least twelve kills, in all stages."""
    command = [sys.executable, "-m", "tests.integration.killing", str(tmp_path / "run"), "1"]
    done = subprocess.run(
        command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["struck"]) >= 12, found
    assert {"baseline", "explore", "compress", "finetune"} <= set(found["struck"]), found
    assert found["finished"]
    same_run(whole, tmp_path / "run")


def wait_for_epoch(directory: Path, process: subprocess.Popen[str], stage: str) -> None:
    while process.poll() is None:
        if any((e["event"], e.get("stage")) == ("epoch", stage) for e in events(directory)):
            return
        time.sleep(0.005)
    pytest.fail(f"the run ended before {stage}: {process.communicate()[0]}")


def test_ctrl_c_says_how_to_go_on_and_resume_does(whole: Path, tmp_path: Path) -> None:
    """Interrupted in exploring, killed in fine-tuning, then finished, on the command line."""
    directory = tmp_path / "run"
    process = compress("--out", str(directory), *SETTINGS, "--onnx=false")
    wait_for_epoch(directory, process, "explore")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert f"Go on with: rsprune compress --resume {directory}" in output
    process = compress("--resume", str(directory))
    wait_for_epoch(directory, process, "finetune")
    process.kill()
    process.communicate()
    process = compress("--resume", str(directory), "--json")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    same_run(whole, directory)


def test_a_finished_run_is_not_repeated(whole: Path) -> None:
    before = (whole / "events.jsonl").read_bytes()
    process = compress("--resume", str(whole))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "x fewer" in output
    assert (whole / "events.jsonl").read_bytes() == before
