"""Images that begin small: the first half of a training at a fraction of the cost.

A convolution at half the height and width does a quarter of the work, and what a network learns
first needs no detail. The second half of a training has the images as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

_GROWN = 0.5  # the share of a training after which images have their full size


def small_size(sides: Sequence[int], small: float) -> list[int]:
    """Height and width at the beginning.

    Args:
        sides: at full size.
        small: their share.
    """
    return [max(1, round(small * side)) for side in sides]


def grown(images: Tensor, small: float, done: float) -> Tensor:
    """The images (B, C, H, W) at their size when the share ``done`` of a training is over."""
    size = small_size(images.shape[2:], small)
    if done >= _GROWN or size == list(images.shape[2:]):
        return images
    return F.interpolate(images, size, mode="bilinear", antialias=True)
