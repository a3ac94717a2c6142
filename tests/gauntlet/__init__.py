"""A gauntlet of small nets: one for every operator, and for every known way to prune wrongly.

Each module registers its nets; ``ENTRIES`` holds them all by name.
"""

from __future__ import annotations

from tests.gauntlet import (  # noqa: F401
    attention,
    blocks,
    elementwise,
    indexing,
    interfaces,
    literals,
    norms,
    parameters,
    pools,
    products,
    reductions,
    shapes,
    unknown,
)
from tests.gauntlet.registry import ENTRIES, Entry

__all__ = ["ENTRIES", "Entry"]
