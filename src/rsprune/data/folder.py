"""Image folders in ImageNet's layout: one directory per class, read with Pillow by workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rsprune.checks import check_count
from rsprune.data import order
from rsprune.data.listing import Listing, classes_of, listed
from rsprune.data.part import Batch, Data
from rsprune.data.pixels import read_square
from rsprune.data.scale import IMAGENET, Scale
from rsprune.data.split import split
from rsprune.errors import DataError

SIZE = 224
MOST_WORKERS = 8
LAYOUT = (
    "The layout is DIR/train/CLASS/*.jpg for training and DIR/val/CLASS/*.jpg or "
    "DIR/test/CLASS/*.jpg for testing."
)

Request = tuple[list[int], int, int]  # numbers of the images; seed and epoch, for what is random


class _Squares(Dataset[Any]):
    """Whole batches of decoded images; runs in the workers."""

    def __init__(self, files: Listing, size: int, augment: str) -> None:
        self._files, self._size, self._augment = files, size, augment

    def __getitem__(self, request: Request) -> tuple[Tensor, Tensor] | DataError:
        numbers, seed, epoch = request
        try:
            squares = [self._square(number, seed, epoch) for number in numbers]
        except DataError as problem:
            return problem  # raised, it would come back wrapped in a worker's traceback
        return torch.stack(squares), self._files.labels[numbers]

    def _square(self, number: int, seed: int, epoch: int) -> Tensor:
        numbers = order.random_seed(seed, epoch, number)
        return read_square(self._files[number], self._size, self._augment, numbers)


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
        requests = ((self._numbers(turn), seed, epoch) for turn in turns)
        return self._decoded(requests, self.steps(batch) - start, self._augment, device)

    def in_order(
        self,
        batch: int,
        *,
        shard: tuple[int, int] = (0, 1),
        device: torch.device | str | None = None,
    ) -> Iterator[Batch]:
        """Every image once, not augmented: see :class:`rsprune.data.Part`."""
        turns = order.in_order(len(self), batch, shard)
        requests = ((self._numbers(turn), 0, 0) for turn in turns)
        return self._decoded(requests, -(-len(self) // batch), "none", device)

    def _numbers(self, turn: order.Turn) -> list[int]:
        numbers: list[int] = self._index[turn.indices].tolist()
        return numbers

    def _decoded(
        self,
        requests: Iterator[Request],
        count: int,
        augment: str,
        device: torch.device | str | None,
    ) -> Iterator[Batch]:
        on_gpu = device is not None and torch.device(device).type == "cuda"
        scale = Scale(self._scale.mean.to(device), self._scale.deviation.to(device))
        loader: DataLoader[Any] = DataLoader(
            _Squares(self._files, self._size, augment),
            sampler=requests,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=max(0, min(self._workers, count)),
            worker_init_fn=_leave_signals,
            generator=torch.Generator(),  # else torch's global random numbers are drawn from
            pin_memory=on_gpu,  # and copied while the GPU computes
        )
        for found in loader:
            if isinstance(found, DataError):
                raise found
            images, labels = (part.to(device, non_blocking=on_gpu) for part in found)
            yield scale(images), labels


def _as_it_is(found: Any) -> Any:
    return found


def _leave_signals(_worker: int) -> None:
    """Of a worker: Ctrl-C is for the process that reads, and SIGTERM ends it as it ends any."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


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
    classes = classes_of(root / "train")
    if not classes:
        raise DataError(f"There is no {root / 'train'} with class directories. {LAYOUT}")
    held_out = [root / part for part in ("val", "test") if classes_of(root / part)]
    if not held_out:
        raise DataError(f"There is no {root / 'val'} with class directories. {LAYOUT}")
    mean, deviation = ((0.0,) * 3, (1.0,) * 3) if normalise == "none" else IMAGENET
    scale = Scale.of(mean, deviation, white=255)
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
    """One a core, up to eight; processes that a launcher started share the machine's cores."""
    if workers is not None:
        return workers
    known = hasattr(os, "sched_getaffinity")  # a container may have few of a machine's cores
    cores = len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1
    return max(1, min(cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), MOST_WORKERS))
