"""added_by: the peak of one call, and nothing where it cannot be known."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from rsprune.metrics import memory


@pytest.mark.skipif(sys.platform != "linux", reason="measured on Linux alone")
def test_the_peak_of_a_call_counts() -> None:
    """What is freed before the end counts, and what was there before does not."""
    before = torch.ones(2**22)  # 16 MB that stay

    def call() -> None:
        torch.ones(2**23).sum()  # 32 MB
        torch.ones(2**21).sum()  # 8 MB, after those are free again

    for _ in range(2):
        added = memory.added_by(call)
        assert added is not None
        assert 2**25 - 2**22 < added < 3 * 2**24  # the allocator may not use again what is free
    assert before.sum() == 2**22


def test_none_without_the_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On other systems, and where the permission is missing, the call is not even made."""
    monkeypatch.setattr(memory, "_FORGET", tmp_path / "no" / "such")
    assert memory.added_by(lambda: pytest.fail("called")) is None
