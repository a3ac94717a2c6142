"""3x3 convolutions on a CPU with a quarter of the multiplications, by Winograd's algorithm.

A 3x3 convolution of a 4x4 tile takes 144 multiplications for every pair of channels, and 36 after a
linear transform of the 6x6 inputs and of the filter. ``winograd.cpp`` has the transforms; what is
between them, forward and backward, are 36 matrix products. The results are those of ``conv2d`` to
about 1e-5 of the largest. It is for ``channels_last`` images in float32.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from rsprune.errors import RunError

Way = Callable[[Tensor, Tensor, Tensor | None], Tensor]
_TILE, _SLABS, _LANE = 4, 36, 8  # outputs on a side; points of a tile; floats in a vector
_WORTH = 40  # channels, in and out, from which the transforms pay
_DENSE = 2  # the side of maps so small that a filter reaches all of it from everywhere
_CACHED = 2**21  # floats that a processor is trusted to keep near
_APART = 16  # floats between slabs, which would lie on each other in a cache


class Winograd(TorchFunctionMode):
    """Within it, ``conv2d`` takes the fast way where there is one."""

    def __init__(self) -> None:
        super().__init__()
        _transforms()  # a missing compiler is told of at once

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        way = _way(*args) if func is F.conv2d and not kwargs else None
        return func(*args, **(kwargs or {})) if way is None else way(*(*args, None)[:3])


def _way(
    images: Tensor, filters: Tensor, _bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Way | None:  # fmt: skip
    """A faster way to the same result as ``conv2d`` with these arguments, if there is one."""
    ones = 1, (1, 1), [1, 1]
    if (
        filters.shape[2:] != (3, 3) or groups != 1 or images.dim() != 4
        or not (stride in ones and padding in ones and dilation in ones)
        or not images.dtype == filters.dtype == torch.float32
    ):  # fmt: skip
        return None
    if max(images.shape[2:]) <= _DENSE:
        return _dense
    fits = all(width >= _WORTH and width % _LANE == 0 for width in filters.shape[:2])
    return _Convolution.apply if fits else None


def _dense(images: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
    """As one matrix product, for maps of 2x2 or less."""
    n, c, h, w = images.shape
    taps = filters.permute(0, 2, 3, 1)  # (K, 3, 3, C)
    reached = [taps[:, 1 - i : 1 - i + h, 1 - j : 1 - j + w] for i in range(h) for j in range(w)]
    matrix = torch.stack(reached).view(-1, h * w * c)  # (h w K, h w C)
    flat = images.permute(0, 2, 3, 1).reshape(n, -1) @ matrix.T
    scores = flat.view(n, h, w, -1).permute(0, 3, 1, 2)
    return scores if bias is None else scores + bias[:, None, None]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
        taps = filters.permute(0, 2, 3, 1).reshape(len(filters), 9, -1)  # (K, 9, C)
        U = (_filter_transform() @ taps).transpose(0, 1)  # (36, K, C)
        x = images.permute(0, 2, 3, 1).contiguous()
        y = x.new_empty(*x.shape[:3], len(filters))
        ctx.save_for_backward(x, U)
        for part, slabs in _parts(x, len(filters)):
            V, M = slabs(x.shape[3]), slabs(len(filters))
            _call("input_to_slabs", x[part], V)
            torch.bmm(V, U.transpose(1, 2), out=M)
            _call("slabs_to_output", y[part], M, bias)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, U = ctx.saved_tensors
        dy = gradients[0].permute(0, 2, 3, 1).contiguous()
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        dU = U.new_zeros(_SLABS, dy.shape[3], x.shape[3])
        for part, slabs in _parts(x, dy.shape[3]):
            V, dM = slabs(x.shape[3]), slabs(dy.shape[3])
            _call("output_back_to_slabs", dy[part], dM)
            _call("input_to_slabs", x[part], V)
            dU.baddbmm_(dM.transpose(1, 2), V)
            if dx is not None:
                torch.bmm(dM, U, out=V)
                _call("slabs_back_to_input", dx[part], V)
        dtaps = _filter_transform().T @ dU.transpose(0, 1)  # (K, 9, C)
        return (
            None if dx is None else dx.permute(0, 3, 1, 2),
            dtaps.view(len(dtaps), 3, 3, -1).permute(0, 3, 1, 2),
            dy.sum((0, 1, 2)) if ctx.needs_input_grad[2] else None,
        )


@cache
def _filter_transform() -> Tensor:
    """G (x) G, from the nine taps of a filter to the 36 points of a tile."""
    rows = [6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]
    G = torch.tensor(rows) / 24
    return torch.kron(G, G)


def _parts(x: Tensor, outputs: int) -> Iterator[tuple[slice, Callable[[int], Tensor]]]:
    """As many images (N, H, W, C) at a time as a cache holds, and what makes slabs for them."""
    n, h, w, c = x.shape
    tiles = -(-h // _TILE) * -(-w // _TILE)
    room = max(_CACHED, _SLABS * c * outputs)  # filters are read once a part
    images = max(2, room // (_SLABS * tiles * (c + outputs)) // 2 * 2)  # alike for two threads
    for start in range(0, n, images):
        count = min(images, n - start) * tiles

        def slabs(channels: int, count: int = count) -> Tensor:
            size = count * channels
            return x.new_empty(_SLABS, size + _APART)[:, :size].view(_SLABS, count, channels)

        yield slice(start, start + images), slabs


def _call(name: str, images: Tensor, slabs: Tensor, bias: Tensor | None = None) -> None:
    """Run a transform between images (N, H, W, C) and slabs (36, tiles, C)."""
    first, second = (images, slabs) if name.endswith("to_slabs") else (slabs, images)
    more = [] if name != "slabs_to_output" else [None if bias is None else bias.data_ptr()]
    sizes = map(ctypes.c_int64, (slabs.stride(0), *images.shape))
    getattr(_transforms(), name)(
        ctypes.c_void_p(first.data_ptr()), ctypes.c_void_p(second.data_ptr()), *sizes,
        ctypes.c_int(torch.get_num_threads()), *map(ctypes.c_void_p, more),
    )  # fmt: skip


@cache
def _transforms() -> ctypes.CDLL:
    """``winograd.cpp``, compiled for this processor."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        raise RunError(
            "winograd = true needs a C++ compiler (c++, g++ or clang++), and there is none on the "
            "PATH. Install one, or leave winograd out."
        )
    with tempfile.TemporaryDirectory() as directory:
        made, library = f"{directory}/winograd.o", f"{directory}/winograd.so"
        source = Path(__file__).with_suffix(".cpp")
        # linked without OpenMP, whose one copy is then that of torch
        for command in (
            ["-O3", "-march=native", "-fPIC", "-fopenmp", "-c", str(source), "-o", made],
            ["-shared", made, "-o", library],
        ):
            told = subprocess.run([compiler, *command], capture_output=True, text=True, check=False)
            if told.returncode:
                raise RunError(
                    f"winograd = true: {compiler} cannot compile {source.name}: "
                    f"{told.stderr.strip().splitlines()[-1]} Leave winograd out."
                )
        return ctypes.CDLL(library)
