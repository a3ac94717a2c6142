"""scikit-learn's digits: 1,797 grey images of 8 x 8 pixels, shipped with the package."""

from __future__ import annotations

import torch

from rsprune.data.images import ImageSplit, Raw, standardised
from rsprune.errors import DataError


def load_digits() -> ImageSplit:
    """1,437 training and 360 test images, always the same."""
    return standardised(read_digits())


def read_digits() -> Raw:
    """The digits with their pixels as they are, 0 to 16."""
    try:
        from sklearn.datasets import load_digits as load
    except ModuleNotFoundError:
        raise DataError(
            "The digits come with scikit-learn: pip install 'rsprune[data]', or scikit-learn."
        ) from None
    bunch = load()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(bunch.images).to(torch.uint8)[order, None]  # (N, 1, 8, 8)
    labels = torch.from_numpy(bunch.target).long()[order]
    cut = len(labels) * 4 // 5
    return Raw(
        (images[:cut], labels[:cut]), (images[cut:], labels[cut:]), 10, "scikit-learn", white=16
    )
