"""What a data set is to the rest of rsprune: three parts that hand out batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

Batch = tuple[Tensor, Tensor]
"""Images (B, C, H, W), standardised floats, and their labels (B,), int64."""


@runtime_checkable
class Part(Protocol):
    """The training, validation or test part of a data set."""

    def __len__(self) -> int:
        """The number of images."""
        ...

    def steps(self, batch: int) -> int:
        """The number of batches in an epoch."""
        ...

    def epoch(
        self,
        batch: int,
        *,
        seed: int,
        epoch: int,
        start: int = 0,
        shard: tuple[int, int] = (0, 1),
        device: torch.device | str | None = None,
    ) -> Iterator[Batch]:
        """One pass in shuffled, augmented batches; an incomplete last batch is left out.

        Everything random is a function of ``seed``, ``epoch`` and the number of the batch, so an
        epoch continued at batch ``start`` gives the same bits as one that was never interrupted.

        Args:
            batch: the number of images in a batch, over all shards.
            seed: of the run.
            epoch: its number, from 0.
            start: the number of the first batch to give; those before it cost nothing.
            shard: (rank, world): this process takes its slice of every batch.
            device: where the batches go; by default they stay on the CPU.
        """
        ...

    def in_order(
        self,
        batch: int,
        *,
        shard: tuple[int, int] = (0, 1),
        device: torch.device | str | None = None,
    ) -> Iterator[Batch]:
        """Every image once, in the order of the data, not augmented; the last batch may be small.

        Args:
            batch: the number of images in a batch, over all shards.
            shard: (rank, world): this process takes its slice of every batch.
            device: where the batches go; by default they stay on the CPU.
        """
        ...


@dataclass(frozen=True)
class Data:
    """A data set for image classification; decisions use ``validation``, ``test`` is reported."""

    name: str
    classes: int
    input_shape: tuple[int, int, int]  # (C, H, W)
    train: Part
    validation: Part
    test: Part
    source: str = ""  # where it was read from, for people

    @property
    def sizes(self) -> dict[str, int]:
        """The number of images in each part."""
        return {
            "train": len(self.train),
            "validation": len(self.validation),
            "test": len(self.test),
        }
