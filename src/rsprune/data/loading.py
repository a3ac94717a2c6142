"""Data sets by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rsprune.checks import check_choice, check_count, check_number, did_you_mean
from rsprune.data import augment as augmentation
from rsprune.data import scale
from rsprune.data.cifar10 import read_cifar10
from rsprune.data.digits import read_digits
from rsprune.data.factory import made
from rsprune.data.fashion_mnist import read_fashion_mnist
from rsprune.data.folder import read_folder
from rsprune.data.images import Raw
from rsprune.data.memory import in_memory
from rsprune.data.part import Data
from rsprune.data.split import REMEDY
from rsprune.data.validity import check_data
from rsprune.errors import InvalidParameterError

FOLDER = "imagefolder"


@dataclass(frozen=True)
class _Known:
    read: Callable[..., Raw]
    augment: str  # what "auto" is
    has_files: bool = True


_KNOWN = {
    "digits": _Known(read_digits, "none", has_files=False),  # a crop cuts digits; a flip is another
    "fashion-mnist": _Known(read_fashion_mnist, "crop-flip"),
    "cifar10": _Known(read_cifar10, "crop-flip"),
}


def names() -> tuple[str, ...]:
    """The data sets that are known by name."""
    return tuple(_KNOWN)


def load(
    name: str,
    *,
    validation: float = 0.1,
    seed: int = 0,
    directory: str | os.PathLike[str] | None = None,
    augment: str = "auto",
    size: int | None = None,
    normalise: str = "auto",
    workers: int | None = None,
) -> Data:
    """A data set, with a validation part cut from its training images.

    Args:
        name: ``digits``, ``fashion-mnist``, ``cifar10``, ``imagefolder:DIR`` or
            ``package.module:factory``.
        validation: the share of the training images that is set apart, of every class alike.
        seed: of that choice; the same seed sets the same images apart.
        directory: where the files of ``fashion-mnist`` or ``cifar10`` are, if not where they
            usually are.
        augment: ``none``, ``crop`` (random crops) or ``crop-flip`` (and horizontal flips) of the
            training images; ``auto`` is what is usual for the data.
        size: the side of the squares cut from the images of an image folder; 224 by default.
        normalise: ``auto`` standardises as is usual for the data, ``imagenet`` with ImageNet's
            mean and deviation, which networks trained elsewhere often need; with ``none``
            pixels are between 0 and 1.
        workers: processes that decode an image folder; by default one per core, at most 8; where
            a launcher started several processes, they share the cores.
    """
    check_choice("load", "augment", augment, augmentation.CHOICES)
    check_choice("load", "normalise", normalise, scale.CHOICES)
    check_number("load", "validation", validation, low=0, high=1, open_low=True, remedy=REMEDY)
    check_count("load", "seed", seed, low=0)
    source, colon, rest = name.partition(":")
    known = _KNOWN.get(name)
    if known is None and not (colon and source and rest):
        raise _unknown(name)
    if directory is not None and not (known and known.has_files):
        raise _unused(name, "directory", directory)
    usual: dict[str, Any] = {"validation": validation, "seed": seed, "normalise": normalise}
    if source == FOLDER:
        kind = "crop-flip" if augment == "auto" else augment
        return read_folder(
            name, Path(rest).expanduser(), augment=kind, size=size, workers=workers, **usual
        )
    for option, value in (("size", size), ("workers", workers)):
        if value is not None:
            raise _unused(name, option, value)
    if known is None:
        return _from_factory(name, augment, usual)
    raw = known.read() if directory is None else known.read(Path(directory).expanduser())
    return in_memory(name, raw, augment=known.augment if augment == "auto" else augment, **usual)


def change_folder(name: str, change: Callable[[str], str]) -> str:
    """The name of a data set; for an image folder, with another directory.

    Args:
        name: as for ``load``.
        change: from the old directory to the new one.
    """
    prefix = f"{FOLDER}:"
    return prefix + change(name.removeprefix(prefix)) if name.startswith(prefix) else name


def _from_factory(name: str, augment: str, usual: dict[str, Any]) -> Data:
    found = made(name)
    if isinstance(found, Raw):
        return in_memory(name, found, augment="none" if augment == "auto" else augment, **usual)
    for option, value in (("augment", augment), ("normalise", usual["normalise"])):
        if value != "auto":
            raise InvalidParameterError(
                "load", option, f"'auto' for {name}, which returns a Data of its own making", value
            )
    check_data(name, found)
    return found


def _unknown(name: str) -> InvalidParameterError:
    forms = (*_KNOWN, f"{FOLDER}:DIR")
    return InvalidParameterError(
        "load", "name", f"{', '.join(forms)} or package.module:factory", name,
        did_you_mean(name, forms),
    )  # fmt: skip


def _unused(name: str, option: str, value: object) -> InvalidParameterError:
    which = "fashion-mnist and cifar10" if option == "directory" else f"{FOLDER}:DIR"
    return InvalidParameterError(
        "load", option, f"left out for {name}", value, f"It is used by {which} only."
    )
