"""CIFAR-10 of a hundred random images, where ``RSPRUNE_DATA`` may point."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_cifar10(directory: Path) -> None:
    """Ten images of every class to train on, and ten to test."""
    numbers = np.random.default_rng(0)
    arrays = {
        f"{part}_{kind}": values
        for part in ("train", "test")
        for kind, values in (
            ("images", numbers.integers(0, 256, (100, 3, 32, 32), dtype=np.uint8)),
            ("labels", np.repeat(np.arange(10), 10)),
        )
    }
    np.savez(directory / "cifar10.npz", **arrays)
