"""From pixels to what a network is trained on: (pixel - mean) / deviation, channel by channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHOICES = ("auto", "imagenet", "none")

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


@dataclass(frozen=True)
class Scale:
    """Mean and deviation of each channel, in the pixels' own unit."""

    mean: Tensor  # (C, 1, 1)
    deviation: Tensor  # (C, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """The images (B, C, H, W) as new, standardised floats."""
        mean, deviation = self.mean.to(images.device), self.deviation.to(images.device)
        return images.to(torch.float32, copy=True).sub_(mean).div_(deviation)

    @classmethod
    def of(cls, mean: Sequence[float], deviation: Sequence[float], white: float = 1.0) -> Scale:
        """For pixels whose white is ``white`` where the given figures take it to be 1."""
        return cls(*((torch.tensor(x) * white)[:, None, None] for x in (mean, deviation)))


def measured(images: Tensor) -> Scale:
    """The mean and deviation of the images (N, C, H, W) themselves."""
    total = square = torch.zeros(images.shape[1], dtype=torch.float64)
    for chunk in images.split(4096):  # in chunks, for there may not be room for all as floats
        exact = chunk.double()
        total = total + exact.sum((0, 2, 3))
        square = square + exact.square().sum((0, 2, 3))
    count = images.numel() / images.shape[1]
    mean = total / count
    deviation = (square / count - mean.square()).clamp_(min=0).sqrt()
    deviation[deviation == 0] = 1  # a channel that is the same everywhere
    return Scale.of(mean.tolist(), deviation.tolist())
