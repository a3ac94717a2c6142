"""Random crops and flips of whole batches, on tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

CHOICES = ("auto", "none", "crop", "crop-flip")


def padding(height: int, width: int) -> int:
    """How far a random crop may move: an eighth of the side; the usual 4 pixels of CIFAR's 32."""
    return max(1, min(height, width) // 8)


def draw(kind: str, count: int, pad: int, numbers: torch.Generator) -> Tensor:
    """What happens to each of ``count`` images: row, column and flip (count, 3).

    The draws do not depend on the device, nor on how a batch is shared out among processes.
    """
    moves = torch.randint(2 * pad + 1, (count, 2), generator=numbers)
    flips = torch.randint(2, (count, 1), generator=numbers) * (kind == "crop-flip")
    return torch.cat((moves, flips), dim=1)


def crop_and_flip(images: Tensor, moves: Tensor, pad: int) -> Tensor:
    """Move each image by its ``moves``; what comes in from outside is zero.

    Args:
        images: (B, C, H, W).
        moves: (B, 3) from :func:`draw`.
        pad: the number of zeros around an image.
    """
    batch, channels, height, width = images.shape
    moves = moves.to(images.device)
    rows = moves[:, 0, None] + torch.arange(height, device=images.device)  # (B, H)
    columns = moves[:, 1, None] + torch.arange(width, device=images.device)  # (B, W)
    columns = torch.where(moves[:, 2, None].bool(), columns.flip(1), columns)
    wide = width + 2 * pad
    flat = (rows[:, :, None] * wide + columns[:, None, :]).view(batch, 1, height * width)
    padded = F.pad(images, (pad, pad, pad, pad)).view(batch, channels, -1)
    return padded.gather(2, flat.expand(-1, channels, -1)).view_as(images)
