"""3x3 convolutions of small maps as matrix products, where a CPU trains in bfloat16.

On maps of a few pixels most of a convolution's time goes into what surrounds its products, and
networks for small images have their widest layers there. The results are those of ``conv2d`` but
for the order of their sums, and, on maps of 2x2 and less, for gradients that are rounded once more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from rsprune.engine.convolutions import DENSE, Convolutions, as_maps, dense, is_3x3

_SMALL = 4  # the side of maps that are better copied once for each of nine taps


class SmallMaps(Convolutions):
    """Within it and bfloat16's autocast, ``conv2d`` of small maps takes the fast way."""

    def _convolved(
        self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *more: Any, **others: Any
    ) -> Tensor | None:
        dtypes = torch.float32, torch.bfloat16
        if (
            not torch.is_autocast_enabled("cpu")
            or torch.get_autocast_dtype("cpu") != torch.bfloat16
            or not is_3x3(dtypes, input, weight, bias, *more, **others)
            or max(input.shape[2:]) > _SMALL
        ):
            return None
        images, filters = input.bfloat16(), weight.bfloat16()
        bias = None if bias is None else bias.bfloat16()
        sides = input.shape[2:]
        if max(sides) <= DENSE:
            maps = dense(images, filters, bias)
        else:
            maps = as_maps(_Convolution.apply(images, filters, bias), sides)  # type: ignore[no-untyped-call]
        last = any(tensor.stride(1) < tensor.stride(3) for tensor in (input, weight))
        return maps if last else maps.contiguous()


class _Convolution(torch.autograd.Function):
    """As products of filters with what they see at every pixel; gives (N H W, K)."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
        ctx.sides = images.shape[2:]
        seen = _seen(images.permute(0, 2, 3, 1))
        for_images, for_filters, _ = ctx.needs_input_grad
        ctx.save_for_backward(seen if for_filters else None, filters if for_images else None)
        return F.linear(seen, _as_matrix(filters), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        seen, filters = ctx.saved_tensors
        k = gradient.shape[1]
        dimages = dfilters = None
        if filters is not None:
            turned = filters.flip(2, 3).transpose(0, 1)  # (C, K, 3, 3)
            maps = gradient.view(-1, *ctx.sides, k)
            dimages = as_maps(F.linear(_seen(maps), _as_matrix(turned)), ctx.sides)
        if seen is not None:
            dfilters = (gradient.T @ seen).view(k, 3, 3, -1).permute(0, 3, 1, 2)
        return dimages, dfilters, gradient.sum(0) if ctx.needs_input_grad[2] else None


def _seen(maps: Tensor) -> Tensor:
    """What a filter sees at every pixel of maps (N, H, W, C): (N H W, 9 C)."""
    h, w = maps.shape[1:3]
    padded = F.pad(maps, (0, 0, 1, 1, 1, 1))
    taps = [padded[:, i : i + h, j : j + w] for i in range(3) for j in range(3)]
    return torch.stack(taps, 3).flatten(0, 2).flatten(1)


def _as_matrix(filters: Tensor) -> Tensor:
    """(K, C, 3, 3) to (K, 9 C)."""
    return filters.permute(0, 2, 3, 1).flatten(1)
