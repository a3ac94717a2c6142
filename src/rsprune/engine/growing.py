"""Images that begin small and grow: the first epochs of a training at a fraction of the cost.

A convolution at half the height and width does a quarter of the work, and what a network learns
first needs no detail. The last third of a training has the images as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

_THIRDS = 3


def side_lengths(sides: Sequence[int], small: float, done: float) -> list[int]:
    """Height and width at the share ``done`` of a training.

    Args:
        sides: at full size.
        small: their share in the first third; the second third is half-way to full size.
        done: 0 at the beginning, 1 at the end.
    """
    third = min(_THIRDS - 1, int(_THIRDS * done))
    share = small + (1 - small) * third / (_THIRDS - 1)
    return [max(1, round(share * side)) for side in sides]


def smaller_sizes(sides: Sequence[int], small: float) -> list[list[int]]:
    """The heights and widths before full size."""
    sizes = [side_lengths(sides, small, third / _THIRDS) for third in range(_THIRDS - 1)]
    return [size for size in sizes if size != list(sides)]


def grown(images: Tensor, small: float, done: float) -> Tensor:
    """The images (B, C, H, W) at the size that :func:`side_lengths` says."""
    size = side_lengths(images.shape[2:], small, done)
    if size == list(images.shape[2:]):
        return images
    return F.interpolate(images, size, mode="bilinear", antialias=True)
