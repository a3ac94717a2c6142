"""Image folders in ImageNet's layout: one directory per class, read with Pillow by workers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rsprune.checks import check_count, did_you_mean
from rsprune.data import order
from rsprune.data.part import Batch, Data
from rsprune.data.pixels import read_square
from rsprune.data.scale import IMAGENET, Scale
from rsprune.data.split import split
from rsprune.errors import DataError

SIZE = 224
MOST_WORKERS = 8
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
)
LAYOUT = (
    "The layout is DIR/train/CLASS/*.jpg for training and DIR/val/CLASS/*.jpg or "
    "DIR/test/CLASS/*.jpg for testing."
)

Request = tuple[int, int]  # number of an image, seed of what is random about it


@dataclass(frozen=True)
class Listing:
    """The image files of a folder and their classes."""

    root: Path
    paths: np.ndarray[Any, Any]  # bytes: a list of str would be copied into every worker
    labels: Tensor

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Path:
        return self.root / os.fsdecode(self.paths[number])


class _Squares(Dataset[Any]):
    """Whole batches of decoded images; runs in the workers."""

    def __init__(self, files: Listing, size: int, augment: str) -> None:
        self._files, self._size, self._augment = files, size, augment

    def __getitem__(self, requests: Sequence[Request]) -> tuple[Tensor, Tensor] | DataError:
        try:
            squares = [
                read_square(self._files[number], self._size, self._augment, seed)
                for number, seed in requests
            ]
        except DataError as problem:
            return problem  # raised, it would come back wrapped in a worker's traceback
        labels = self._files.labels[[number for number, _ in requests]]
        return torch.stack(squares), labels


class FolderPart:
    """A part whose images are files, decoded as they are used.

    Args:
        files: the images of a folder, which parts may share.
        index: which of them are this part's; all of them by default.
        size: the side of the squares that are cut from them.
        scale: from pixels to floats.
        workers: processes that decode; 0 decodes in this one.
        augment: ``none``, ``crop`` or ``crop-flip``, in epochs; never in order.
    """

    def __init__(
        self,
        files: Listing,
        index: Tensor | None = None,
        *,
        size: int,
        scale: Scale,
        workers: int,
        augment: str = "none",
    ) -> None:
        self._files, self._size, self._scale = files, size, scale
        self._index = torch.arange(len(files)) if index is None else index
        self._workers, self._augment = workers, augment

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
        batches = [
            [(number, order.random_seed(seed, epoch, number)) for number in self._numbers(turn)]
            for turn in turns
        ]
        return self._decoded(batches, self._augment, device)

    def in_order(
        self,
        batch: int,
        *,
        shard: tuple[int, int] = (0, 1),
        device: torch.device | str | None = None,
    ) -> Iterator[Batch]:
        """Every image once, not augmented: see :class:`rsprune.data.Part`."""
        turns = order.in_order(len(self), batch, shard)
        batches = [[(number, 0) for number in self._numbers(turn)] for turn in turns]
        return self._decoded(batches, "none", device)

    def _numbers(self, turn: order.Turn) -> list[int]:
        numbers: list[int] = self._index[turn.indices].tolist()
        return numbers

    def _decoded(
        self, batches: list[list[Request]], augment: str, device: torch.device | str | None
    ) -> Iterator[Batch]:
        loader: DataLoader[Any] = DataLoader(
            _Squares(self._files, self._size, augment),
            sampler=batches,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=min(self._workers, len(batches)),
            generator=torch.Generator(),  # else torch's global random numbers are drawn from
        )
        for found in loader:
            if isinstance(found, DataError):
                raise found
            images, labels = found
            yield self._scale(images.to(device)), labels.to(device)


def _as_it_is(found: Any) -> Any:
    return found


def read_folder(
    name: str,
    root: Path,
    *,
    validation: float,
    seed: int,
    augment: str,
    normalise: str,
    size: int | None,
    workers: int | None,
) -> Data:
    """The parts of an image folder.

    Where there are both ``val`` and ``test``, the first is the validation part and nothing is cut
    from the training images.
    """
    size, workers = SIZE if size is None else size, _default_workers(workers)
    check_count("load", "size", size, low=1)
    check_count("load", "workers", workers, low=0)
    classes = _classes(root / "train") if (root / "train").is_dir() else []
    if not classes:
        raise DataError(f"There is no {root / 'train'} with class directories. {LAYOUT}")
    held_out = [root / part for part in ("val", "test") if _classes(root / part)]
    if not held_out:
        raise DataError(f"There is no {root / 'val'} with class directories. {LAYOUT}")
    scale = (
        Scale.of((0.0,) * 3, (1.0,) * 3, 255) if normalise == "none" else Scale.of(*IMAGENET, 255)
    )
    train, *others = (listed(folder, classes) for folder in (root / "train", *held_out))
    settings: dict[str, Any] = {"size": size, "scale": scale, "workers": workers}
    if len(others) == 2:
        rest, apart = None, FolderPart(others[0], **settings)
    else:
        rest, chosen = split(train.labels, validation, seed)
        apart = FolderPart(train, chosen, **settings)
    return Data(
        name, len(classes), (3, size, size),
        FolderPart(train, rest, augment=augment, **settings), apart,
        FolderPart(others[-1], **settings), str(root),
    )  # fmt: skip


def _default_workers(workers: int | None) -> int:
    return min(os.cpu_count() or 1, MOST_WORKERS) if workers is None else workers


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())


def listed(folder: Path, classes: Sequence[str]) -> Listing:
    """The images in ``folder``, class by class; a class's number is its place in ``classes``."""
    paths: list[bytes] = []
    labels: list[int] = []
    for name in _classes(folder):
        if name not in classes:
            raise DataError(
                f"{folder / name} is a class that is not in {folder.parent / 'train'}. "
                f"{did_you_mean(name, classes)}".rstrip()
            )
        found = sorted(_images(folder / name, folder))
        if not found:
            raise DataError(f"{folder / name} holds no images. Add some or remove the directory.")
        paths += found
        labels += [classes.index(name)] * len(found)
    return Listing(folder, np.array(paths), torch.tensor(labels))


def _images(folder: Path, root: Path) -> Iterator[bytes]:
    for place, _, files in os.walk(folder):
        for file in files:
            if os.path.splitext(file)[1].lower() in SUFFIXES:
                yield os.fsencode(os.path.relpath(os.path.join(place, file), root))
