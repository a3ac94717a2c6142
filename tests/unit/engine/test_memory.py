"""Freed memory stays with the process of a run on a CPU."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Pages that the system hands out while 100 MB are filled and freed ten times.
COUNT = """
import resource, torch
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.empty(25_000_000).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
{prepare}
faults()
print(faults())
"""
MACHINE = """
from rsprune.engine.machine import Machine
from rsprune.engine.recipe import Recipe
Machine(Recipe(device="cpu"))
"""


def faults(prepare: str) -> int:
    command = [sys.executable, "-c", COUNT.format(prepare=prepare)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to")
def test_freed_memory_is_used_again() -> None:
    """A run's process asks the system for no new pages where an ordinary one asks for thousands."""
    assert faults("") > 1000
    assert faults(MACHINE) < 100
