"""Memory that training frees stays with the process, where the C library is glibc.

Every step frees hundreds of megabytes of activations and asks for them again. By default glibc
gives large blocks back to the system, which hands out new, empty pages: that is about a tenth of a
training step on a CPU (``benchmarks/memory.py``).
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # names of mallopt's parameters in malloc.h


def keep_freed_memory() -> None:
    """Let the process keep what it frees, until it ends; does nothing without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)  # large blocks come from the heap too
        mallopt(_TRIM_THRESHOLD, -1)  # whose end is not given back
