"""3x3 convolutions of small maps as matrix products, where a CPU trains in bfloat16.

On maps of a few pixels most of a convolution's time goes into what surrounds its products, and
networks for small images have their widest layers there. The results are those of ``conv2d`` but
for the order of their sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

DENSE = 2  # the side of maps so small that a filter reaches all of it from everywhere
_SMALL = 4  # the side of maps that are better copied once for each of nine taps


class SmallMaps(TorchFunctionMode):
    """Within it and bfloat16's autocast, ``conv2d`` of small maps takes the fast way."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = _convolved(*args, **kwargs) if func is F.conv2d else None
        return func(*args, **kwargs) if found is None else found


def _convolved(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *more: Any, **others: Any
) -> Tensor | None:
    """What ``conv2d`` gives for these arguments, if there is a faster way to it."""
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
        maps = _as_maps(_Convolution.apply(images, filters, bias), sides)  # type: ignore[no-untyped-call]
    return maps.contiguous() if input.is_contiguous() and weight.is_contiguous() else maps


def is_3x3(
    dtypes: Sequence[torch.dtype], input: Tensor, weight: Tensor, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> bool:  # fmt: skip
    """Whether these arguments of ``conv2d`` are a 3x3 convolution on a CPU that keeps the size."""
    tensors = input, weight, *(() if bias is None else (bias,))
    ones = 1, (1, 1), [1, 1]
    return (
        all(_is_plain(tensor, dtypes) for tensor in tensors)
        and input.dim() == 4 and len(input) > 0 and weight.shape[1:] == (input.shape[1], 3, 3)
        and (bias is None or bias.shape == weight.shape[:1])
        and stride in ones and padding in ones and dilation in ones and groups == 1
    )  # fmt: skip


def _is_plain(tensor: Tensor, dtypes: Sequence[torch.dtype]) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype in dtypes
        and tensor.device.type == "cpu"
    )


def dense(images: Tensor, filters: Tensor, bias: Tensor | None) -> Tensor:
    """As one product with a matrix from all pixels to all pixels, for maps of 2x2 or less."""
    (n, c, h, w), k = images.shape, len(filters)
    taps = filters.permute(0, 2, 3, 1)  # (K, 3, 3, C)
    reached = [taps[:, 1 - i : 1 - i + h, 1 - j : 1 - j + w] for i in range(h) for j in range(w)]
    matrix = torch.stack(reached).view(h * w * k, h * w * c)
    flat = images.permute(0, 2, 3, 1).reshape(n, h * w * c)
    scores = F.linear(flat, matrix, None if bias is None else bias.repeat(h * w))
    return _as_maps(scores.view(-1, k), (h, w))


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
            dimages = _as_maps(F.linear(_seen(maps), _as_matrix(turned)), ctx.sides)
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


def _as_maps(flat: Tensor, sides: Sequence[int]) -> Tensor:
    """(N H W, K) to maps (N, K, H, W)."""
    return flat.view(-1, *sides, flat.shape[-1]).permute(0, 3, 1, 2)
