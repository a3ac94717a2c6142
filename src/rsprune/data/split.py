"""The validation part: cut from the training data, the same for the same seed."""

from __future__ import annotations

import torch
from torch import Tensor

from rsprune.checks import check_number
from rsprune.data.order import generator
from rsprune.errors import InvalidParameterError

REMEDY = "Decisions are made on validation images, never on test images."


def split(labels: Tensor, validation: float, seed: int) -> tuple[Tensor, Tensor]:
    """The indices of the training and of the validation images.

    Every class gives its share, and keeps at least one image for training.

    Args:
        labels: (N,).
        validation: the share of the images to take.
        seed: of the permutation.
    """
    check_number("load", "validation", validation, low=0, high=1, open_low=True, remedy=REMEDY)
    counts = torch.bincount(labels)
    quota = _quota(counts, int(len(labels) * validation))
    order = torch.randperm(len(labels), generator=generator(seed))
    order = order[labels[order].argsort(stable=True)]  # class by class, shuffled within
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    taken = rank < quota.repeat_interleave(counts)
    if not taken.any():
        raise InvalidParameterError(
            "load", "validation", f"enough for one of the {len(labels)} training images",
            validation, REMEDY,
        )  # fmt: skip
    return order[~taken].sort().values, order[taken].sort().values


def _quota(counts: Tensor, total: int) -> Tensor:
    """``total`` shared out in proportion to ``counts``; what is left over by largest remainder."""
    exact = counts * (total / int(counts.sum()))
    quota = exact.floor().long()
    behind = (exact - quota).argsort(descending=True, stable=True)
    quota[behind[: total - int(quota.sum())]] += 1
    return torch.minimum(quota, (counts - 1).clamp(min=0))
