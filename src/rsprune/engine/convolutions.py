"""What the engine's own convolutions share: when they apply, and the smallest maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

DENSE = 2  # the side of maps so small that a filter reaches all of it from everywhere


class Convolutions(TorchFunctionMode):
    """Within it, ``conv2d`` takes a faster way where there is one."""

    def _convolved(
        self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *more: Any, **others: Any
    ) -> Tensor | None:
        """What ``conv2d`` gives for these arguments, if there is a faster way to it."""
        raise NotImplementedError

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        ours = func is F.conv2d and not _kept_by_hooks()
        found = self._convolved(*args, **kwargs) if ours else None
        return func(*args, **kwargs) if found is None else found


def _kept_by_hooks() -> bool:
    """Whether hooks keep what gradients need, as where activations are to be computed again.

    That happens outside of this mode, which no backward pass sees, and has to be done alike.
    """
    if torch.compiler.is_compiling():
        return False
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


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
    return as_maps(scores.view(-1, k), (h, w))


def as_maps(flat: Tensor, sides: Sequence[int]) -> Tensor:
    """(N H W, K) to maps (N, K, H, W)."""
    return flat.view(-1, *sides, flat.shape[-1]).permute(0, 3, 1, 2)
