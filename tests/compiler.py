"""The mark of tests that need a C++ compiler."""

from __future__ import annotations

import shutil

import pytest

compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")
