"""Fixtures for all tests: one thread per test process, and no compiled graphs left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

# Times on shared machines say nothing, and a run must be repeatable.
hypothesis.settings.register_profile("rsprune", deadline=None, derandomize=True)
hypothesis.settings.load_profile("rsprune")


@pytest.fixture(autouse=True, scope="session")
def threads() -> None:
    """With several test processes, one thread each; alone, all of them."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"  # and those that tests start


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Forget compiled graphs, whose number torch limits, before and after."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
