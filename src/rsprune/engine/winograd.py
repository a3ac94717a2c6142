"""3x3 convolutions on a CPU with a quarter of the multiplications, by Winograd's algorithm.

A 3x3 convolution of a 4x4 tile takes 144 multiplications for every pair of channels, and 36 after a
linear transform of the 6x6 inputs and of the filter. Between the transforms, forward and backward,
are 36 matrix products. The results are those of ``conv2d`` to about 1e-5 of the largest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rsprune.engine.convolutions import DENSE, Convolutions, dense, is_3x3
from rsprune.engine.transforms import library, transform

_TILE, _SLABS, _LANE = 4, 36, 8  # outputs on a side; points of a tile; floats in a vector
_WORTH = 40  # channels, in and out, from which the transforms pay
_CACHED = 2**21  # floats that a processor is trusted to keep near


class Winograd(Convolutions):
    """Within it, ``conv2d`` takes the fast way where there is one."""

    def __init__(self) -> None:
        super().__init__()
        library()  # a missing compiler is told of at once

    def _convolved(
        self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *more: Any, **others: Any
    ) -> Tensor | None:
        if torch.is_autocast_enabled("cpu") or not is_3x3(
            (torch.float32,), input, weight, bias, *more, **others
        ):
            return None
        if max(input.shape[2:]) <= DENSE:
            return dense(input, weight, bias)
        if any(width < _WORTH or width % _LANE for width in weight.shape[:2]):
            return None
        return _Convolution.apply(input, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
        (n, c, h, w), k = images.shape, len(filters)
        taps = filters.permute(0, 2, 3, 1).reshape(k, 9, c)
        U = (_filter_transform() @ taps).transpose(0, 1)  # (36, K, C)
        x = images.contiguous(memory_format=torch.channels_last)
        y = torch.empty(n, k, h, w, memory_format=torch.channels_last)
        bias = None if bias is None else bias.contiguous()
        for part, tiles in _parts(x, k):
            V, M = _slabs(tiles, c), _slabs(tiles, k)
            transform("input_to_slabs", x[part], V)
            torch.bmm(V, U.transpose(1, 2), out=M)
            transform("slabs_to_output", y[part], M, bias)
        ctx.save_for_backward(x, U)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, U = ctx.saved_tensors
        k, c = U.shape[1:]
        for_images, for_filters, for_bias = ctx.needs_input_grad
        dy = gradient.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x) if for_images else None
        dU = torch.empty(_SLABS, k, c) if for_filters else None
        for part, tiles in _parts(x, k):
            V, dM = _slabs(tiles, c), _slabs(tiles, k)
            transform("output_back_to_slabs", dy[part], dM)
            if dU is not None:
                transform("input_to_slabs", x[part], V)
                dU.baddbmm_(dM.transpose(1, 2), V, beta=int(part.start > 0))  # 0 reads no dU
            if dx is not None:
                torch.bmm(dM, U, out=V)
                transform("slabs_back_to_input", dx[part], V)
        dtaps = None if dU is None else _filter_transform().T @ dU.transpose(0, 1)  # (K, 9, C)
        return (
            dx,
            None if dtaps is None else dtaps.view(k, 3, 3, c).permute(0, 3, 1, 2),
            dy.sum((0, 2, 3)) if for_bias else None,
        )


@cache
def _filter_transform() -> Tensor:
    """G (x) G, from the nine taps of a filter to the 36 points of a tile."""
    rows = [6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]
    G = torch.tensor(rows, dtype=torch.float32, device="cpu") / 24
    return torch.kron(G, G)


def _parts(x: Tensor, outputs: int) -> Iterator[tuple[slice, int]]:
    """As many images (N, C, H, W) at a time as a cache holds, and the number of their tiles."""
    n, c, h, w = x.shape
    tiles = -(-h // _TILE) * -(-w // _TILE)
    room = max(_CACHED, _SLABS * c * outputs)  # filters are read once a part
    images = max(1, room // (_SLABS * tiles * (c + outputs)))
    for start in range(0, n, images):
        yield slice(start, start + images), min(images, n - start) * tiles


def _slabs(tiles: int, channels: int) -> Tensor:
    """Room for 36 points (36, tiles + 1, C).

    The last row is zero. It keeps slabs from lying on each other in a cache, and a gap would keep
    torch from doing their products in one batch.
    """
    slabs = torch.empty(_SLABS, tiles + 1, channels)
    slabs[:, tiles] = 0
    return slabs
