"""The files of an image folder, and the classes that its directories are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rsprune.checks import did_you_mean
from rsprune.errors import DataError

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif")
)


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


def classes_of(folder: Path) -> list[str]:
    """The names of the class directories in ``folder``, sorted; none if it does not exist."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def listed(folder: Path, classes: Sequence[str]) -> Listing:
    """The images in ``folder``, class by class; a class's number is its place in ``classes``."""
    paths: list[bytes] = []
    labels: list[int] = []
    for name in classes_of(folder):
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
        within = os.path.relpath(place, root)  # once a directory: ImageNet has a million files
        for file in files:
            if os.path.splitext(file)[1].lower() in SUFFIXES and not file.startswith("."):
                yield os.fsencode(os.path.join(within, file))
