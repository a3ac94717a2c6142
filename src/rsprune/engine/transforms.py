"""The transforms of Winograd's convolution, in C++, compiled where they are first needed."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from rsprune.errors import RunError

_SOURCE = Path(__file__).with_suffix(".cpp")
_NAMES = "input_to_slabs", "output_back_to_slabs", "slabs_to_output", "slabs_back_to_input"
_FORMS = (ctypes.c_void_p,) * 2 + (ctypes.c_int64,) * 5 + (ctypes.c_int, ctypes.c_void_p)


def transform(name: str, images: Tensor, slabs: Tensor, bias: Tensor | None = None) -> None:
    """Fill slabs (36, tiles, C) from images (N, C, H, W) with channels last, or images from slabs.

    Args:
        name: which of the four functions of ``transforms.cpp``.
        images: read, or written by ``slabs_to_...``.
        slabs: written, or read; further rows are left alone.
        bias: (C), added by ``slabs_to_output``.
    """
    getattr(library(), name)(
        images.data_ptr(), slabs.data_ptr(), slabs.stride(0), *images.shape,
        torch.get_num_threads(), None if bias is None else bias.data_ptr(),
    )  # fmt: skip


@cache
def library() -> ctypes.CDLL:
    """``transforms.cpp``, compiled for this processor.

    Raises:
        RunError: where that cannot be done.
    """
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None or sys.platform != "linux":
        raise RunError(
            "winograd = true needs Linux and g++ on the PATH. Install it, or leave winograd out."
        )
    with tempfile.TemporaryDirectory() as directory:
        made, linked = f"{directory}/transforms.o", f"{directory}/transforms.so"
        _run(compiler, "-O3", "-march=native", "-fPIC", "-fopenmp", "-c", _SOURCE, "-o", made)
        _run(compiler, "-shared", made, "-o", linked)  # without OpenMP: torch brings the one copy
        try:
            found = ctypes.CDLL(linked)
        except OSError as error:
            raise RunError(
                f"winograd = true: what {compiler} made of {_SOURCE.name} cannot be loaded "
                f"({error}). Programs must be allowed in TMPDIR. Or leave winograd out."
            ) from error
    for name in _NAMES:
        getattr(found, name).argtypes = _FORMS
        getattr(found, name).restype = None
    return found


def _run(compiler: str, *arguments: str | Path) -> None:
    told = subprocess.run(
        [compiler, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if told.returncode:
        lines = [line for line in told.stderr.splitlines() if "error" in line]
        reason = lines[0].strip() if lines else f"exit code {told.returncode}"
        raise RunError(
            f"winograd = true: {compiler} cannot compile {_SOURCE.name} ({reason}). "
            "Leave winograd out."
        )
