"""Data sets by name."""

from __future__ import annotations

import os

from rsprune.checks import check_choice, check_count
from rsprune.data import augment as augmentation
from rsprune.data import scale
from rsprune.data.digits import read_digits
from rsprune.data.memory import in_memory
from rsprune.data.part import Data


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
    """A data set, with a validation part cut from its training images."""
    check_choice("load", "augment", augment, augmentation.CHOICES)
    check_choice("load", "normalise", normalise, scale.CHOICES)
    check_count("load", "seed", seed, low=0)
    return in_memory(
        name, read_digits(), validation=validation, seed=seed,
        augment="none" if augment == "auto" else augment, normalise=normalise,
    )  # fmt: skip
