"""Image data held in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Images:
    """Images (N, C, H, W), standardised, with their labels (N,)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def head(self, count: int) -> Images:
        """The first ``count`` images."""
        return Images(self.images[:count], self.labels[:count])

    def batches(self, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch of shuffled batches; the last may be smaller."""
        for index in torch.split(torch.randperm(len(self), generator=generator), size):
            yield self.images[index], self.labels[index]

    def in_order(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All images in batches, in their order."""
        yield from zip(torch.split(self.images, size), torch.split(self.labels, size), strict=True)


@dataclass(frozen=True)
class ImageSplit:
    """Training and test images of one data set."""

    train: Images
    test: Images
    classes: int


def standardised(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> ImageSplit:
    """Scale both parts by the mean and deviation of the training images."""
    mean, deviation = train[0].mean(), train[0].std()
    parts = [Images((x - mean) / deviation, y.long()) for x, y in (train, test)]
    return ImageSplit(parts[0], parts[1], int(train[1].max()) + 1)
