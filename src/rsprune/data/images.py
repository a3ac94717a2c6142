"""Image data held in memory: as read (Raw), and as plain standardised tensors (Images)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Labelled = tuple[Tensor, Tensor]
"""Images (N, C, H, W) and their labels (N,)."""


@dataclass(frozen=True)
class Raw:
    """A data set as it was read, its pixels as they are."""

    train: Labelled
    test: Labelled
    classes: int
    source: str  # where it was read from, for people
    white: float = 255.0  # the value of a white pixel
    usual: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # mean, deviation; white is 1


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


def standardised(raw: Raw) -> ImageSplit:
    """Both parts scaled by the mean and deviation of the training images."""
    train = raw.train[0].float()
    mean, deviation = train.mean(), train.std()
    parts = [Images((x.float() - mean) / deviation, y) for x, y in (raw.train, raw.test)]
    return ImageSplit(parts[0], parts[1], raw.classes)
