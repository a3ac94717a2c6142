"""Data sets that fit into memory: bytes or floats, held once, made into batches as they are used.

Bytes are indexed, cropped and flipped as bytes, and become standardised floats batch by batch: a
quarter of the memory, and faster than moving floats about.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rsprune.data import order
from rsprune.data.augment import crop_and_flip, draw, padding
from rsprune.data.images import Labelled, Raw
from rsprune.data.part import Batch, Data
from rsprune.data.scale import IMAGENET, Scale, measured
from rsprune.data.split import split
from rsprune.data.validity import check_raw
from rsprune.errors import InvalidParameterError


class MemoryPart:
    """A part whose images are in memory.

    Args:
        data: images (N, C, H, W) and labels (N,), which parts may share.
        index: which of the images are this part's; all of them by default.
        scale: from pixels to floats; by default they are only made float32.
        augment: ``none``, ``crop`` or ``crop-flip``, in epochs; never in order.
    """

    def __init__(
        self,
        data: Labelled,
        index: Tensor | None = None,
        *,
        scale: Scale | None = None,
        augment: str = "none",
    ) -> None:
        self._images, self._labels = data
        self._index = torch.arange(len(self._labels)) if index is None else index
        self._scale, self._augment = scale, augment
        self._pad = padding(*self._images.shape[2:])

    def __len__(self) -> int:
        return len(self._index)

    def steps(self, batch: int) -> int:
        """The number of batches in an epoch."""
        return order.steps(len(self), batch)

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
        """One pass in shuffled, augmented batches: see :class:`rsprune.data.Part`."""
        turns = order.shuffled(len(self), batch, seed=seed, epoch=epoch, start=start, shard=shard)
        return (self._trained_on(turn, seed, epoch, device) for turn in turns)

    def in_order(
        self,
        batch: int,
        *,
        shard: tuple[int, int] = (0, 1),
        device: torch.device | str | None = None,
    ) -> Iterator[Batch]:
        """Every image once, not augmented: see :class:`rsprune.data.Part`."""
        turns = order.in_order(len(self), batch, shard)
        return (self._finished(*self._taken(turn, device)) for turn in turns)

    def _trained_on(
        self, turn: order.Turn, seed: int, epoch: int, device: torch.device | str | None
    ) -> Batch:
        images, labels = self._taken(turn, device)
        if self._augment != "none":
            numbers = order.generator(seed, epoch, turn.number)
            moves = draw(self._augment, len(turn.members), self._pad, numbers)[turn.mine]
            images = crop_and_flip(images, moves, self._pad)
        return self._finished(images, labels)

    def _taken(self, turn: order.Turn, device: torch.device | str | None) -> Batch:
        index = self._index[turn.indices]
        return self._images[index].to(device), self._labels[index].to(device)

    def _finished(self, images: Tensor, labels: Tensor) -> Batch:
        return (images.float() if self._scale is None else self._scale(images)), labels


def in_memory(
    name: str, raw: Raw, *, validation: float, seed: int, augment: str, normalise: str
) -> Data:
    """The three parts of a data set that was read into memory.

    Args:
        name: of the data set.
        raw: what was read; it is checked here.
        validation: the share of the training images to set apart.
        seed: of that choice.
        augment: ``none``, ``crop`` or ``crop-flip``.
        normalise: ``auto``, ``imagenet`` or ``none``.
    """
    check_raw(name, raw)
    scale = _scale(name, raw, normalise)
    rest, apart = split(raw.train[1], validation, seed)
    channels, height, width = raw.train[0].shape[1:]
    return Data(
        name,
        raw.classes,
        (channels, height, width),
        MemoryPart(raw.train, rest, scale=scale, augment=augment),
        MemoryPart(raw.train, apart, scale=scale),
        MemoryPart(raw.test, scale=scale),
        raw.source,
    )


def _scale(name: str, raw: Raw, normalise: str) -> Scale | None:
    images = raw.train[0]
    white = raw.white if images.dtype == torch.uint8 else 1.0
    channels = images.shape[1]
    if normalise == "none":
        return Scale.of([0.0] * channels, [1.0] * channels, white) if white != 1 else None
    if normalise == "imagenet":
        if channels != 3 or float(images.min()) < 0 or float(images.max()) > white:
            raise InvalidParameterError(
                "load", "normalise", f"'auto' or 'none' for {name}", normalise,
                f"ImageNet's figures are for three colours between 0 and {white:g}.",
            )  # fmt: skip
        return Scale.of(*IMAGENET, white)
    if raw.usual is not None:
        return Scale.of(*raw.usual, white)
    return measured(images) if images.dtype == torch.uint8 else None
