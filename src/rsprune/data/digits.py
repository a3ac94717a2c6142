"""scikit-learn's digits: 1,797 grey images of 8 x 8 pixels, shipped with the package."""

from __future__ import annotations

import torch

from rsprune.data.images import ImageSplit, standardised
from rsprune.errors import DataError


def load_digits() -> ImageSplit:
    """1,437 training and 360 test images, always the same."""
    try:
        from sklearn.datasets import load_digits as load
    except ModuleNotFoundError:
        raise DataError(
            "The digits come with scikit-learn: pip install 'rsprune[data]', or scikit-learn."
        ) from None
    bunch = load()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(bunch.images).float()[order, None]  # (N, 1, 8, 8)
    labels = torch.from_numpy(bunch.target)[order]
    cut = len(labels) * 4 // 5
    return standardised((images[:cut], labels[:cut]), (images[cut:], labels[cut:]))
