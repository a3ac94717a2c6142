"""How much memory one call takes at its peak, as the operating system sees it.

Linux keeps the largest resident size of a process since it was last told to forget it. What the
allocator holds in reserve is given back first, so that the call has to ask for all it needs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

_STATUS, _FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_FORGET_PEAK = "5"


def added_by(call: Callable[[], object]) -> int | None:
    """The bytes by which the process grows at the peak of ``call``.

    That includes what the allocator keeps of memory which the call has freed again.
    What the call uses again, such as compiled kernels, has to be there from an earlier call.
    None where it cannot be measured: without Linux, glibc and the permission to ask.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
        _FORGET.write_text(_FORGET_PEAK)
        before = _size("VmRSS")
    except (OSError, AttributeError, TypeError):  # another system, another library, no permission
        return None
    call()
    return max(0, _size("VmHWM") - before)


def _size(name: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
