"""Pools, padding and resampling: what they do along space, they do to every channel alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from rsprune.structure.layout import Layout
from rsprune.structure.rules.reduce import kept_whole
from rsprune.structure.rules.registry import FUNCTIONS, Call, rule

_DIMS = {"1d": 1, "2d": 2, "3d": 3}


@rule(
    *(f"{kind}{n}d" for kind in ("avg_pool", "max_pool", "adaptive_avg_pool", "_adaptive_avg_pool",
      "adaptive_max_pool", "reflection_pad", "replication_pad", "fractional_max_pool")
      for n in (1, 2, 3)),
    *(f"max_pool{n}d_with_indices" for n in (1, 2, 3)),
    *(f"{exact}{kind}" for exact in ("", "_")
      for kind in ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
                   "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d",
                   "upsample_bicubic2d", "upsample_nearest_exact1d", "upsample_nearest_exact2d",
                   "upsample_nearest_exact3d", "upsample_bilinear2d_aa", "upsample_bicubic2d_aa")),
    "grid_sampler_2d", "grid_sampler_3d",
)  # fmt: skip
def spatial(call: Call) -> None:
    """Works along the last dimensions, channel by channel."""
    x = call.args[0]
    count = next(n for suffix, n in _DIMS.items() if suffix in call.name.replace("_2d", "2d"))
    layout = _along_space(call, x, count)
    outputs = call.out if isinstance(call.out, tuple | list) else (call.out,)
    for output in outputs:
        if isinstance(output, Tensor) and output.dim() == x.dim():
            call.write(output, layout)


def _along_space(call: Call, x: Tensor, count: int) -> Layout:
    return kept_whole(call, call.read(x), range(x.dim() - count, x.dim()), "works along it")


def pad_function(call: Call) -> None:
    """Padding in any mode."""
    x, amounts = call.args[0], call.argument(1, "pad")
    if call.argument(2, "mode", "constant") == "constant":
        pad(replace(call, args=(x, list(amounts), call.argument(3, "value", 0))))
    else:
        call.write(call.out, _along_space(call, x, len(amounts) // 2))


FUNCTIONS[F.pad] = pad_function


@rule("constant_pad_nd")
def pad(call: Call) -> None:
    """Constants at the edges, which stay; along channels as in a padded shortcut."""
    x, amounts = call.args[:2]
    layout = call.read(x)
    blocks = []
    for block in layout.blocks:
        widths = [_amount(amounts, x.dim() - 1 - d) for d in block.dims]
        if len(block.dims) > 1 and any(any(width) for width in widths):
            call.freeze(block, "pads a dimension that was split")
            continue
        labels = block.labels
        for axis, (before, after) in enumerate(widths):
            labels = _padded(labels, axis, before, after)
        blocks.append(block._replace(labels=labels))
    value = call.argument(2, "value", 0)
    call.write(call.out, Layout(tuple(blocks)).with_zero(value is None or value == 0))


def _amount(amounts: list[int], from_last: int) -> tuple[int, int]:
    at = 2 * from_last
    return (amounts[at], amounts[at + 1]) if at < len(amounts) else (0, 0)


def _padded(labels: np.ndarray, axis: int, before: int, after: int) -> np.ndarray:
    """Zeros added, or with negative amounts indices taken away."""
    stop = labels.shape[axis] + min(after, 0)
    labels = labels.take(range(max(-before, 0), stop), axis)
    widths = [(0, 0)] * labels.ndim
    widths[axis] = (max(before, 0), max(after, 0))
    return np.pad(labels, widths)
