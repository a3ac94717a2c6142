"""Where fetched data sets are kept."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "RSPRUNE_DATA"


def cache_directory() -> Path:
    """``$RSPRUNE_DATA``, or ``~/.cache/rsprune``."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "rsprune")
