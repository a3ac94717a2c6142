"""Whether tensors are images with labels; what is wrong is named."""

from __future__ import annotations

import torch
from torch import Tensor

from rsprune.data.images import Raw
from rsprune.data.part import Data, Part
from rsprune.errors import DataError


def check_raw(name: str, raw: Raw) -> None:
    """Refuse parts that are empty, of unequal length or shape, or with impossible labels."""
    for part, (images, labels) in (("train", raw.train), ("test", raw.test)):
        owner = f"the {part} part of {name}"
        _check_images(owner, images)
        _check_labels(owner, labels, len(images), raw.classes)
    train, test = raw.train[0], raw.test[0]
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise DataError(
            f"The images of {name} differ: train is {_kind(train)}, test is {_kind(test)}. "
            "Both parts must have the same shape and dtype."
        )


def check_data(name: str, data: Data) -> None:
    """Refuse a user's own Data whose first images are not what it says they are."""
    for part, images in (
        ("train", data.train),
        ("validation", data.validation),
        ("test", data.test),
    ):
        owner = f"the {part} part of {name}"
        if not isinstance(images, Part):
            raise DataError(f"{owner.capitalize()} is no rsprune.data.Part: {type(images)}.")
        first, labels = next(iter(images.in_order(1)), (torch.empty(0), torch.empty(0)))
        _check_images(owner, first)
        _check_labels(owner, labels, len(first), data.classes)
        if tuple(first.shape[1:]) != tuple(data.input_shape):
            raise DataError(
                f"The images of {owner} are {_kind(first[0])}, but its input_shape is "
                f"{tuple(data.input_shape)}."
            )


def _check_images(owner: str, images: Tensor) -> None:
    if images.dim() != 4 or not images.numel():
        raise DataError(
            f"The images of {owner} are {_kind(images)}; needed are at least one image, as "
            "(N, C, H, W)."
        )
    if images.dtype == torch.uint8:
        return
    if not images.dtype.is_floating_point:
        raise DataError(
            f"The images of {owner} are {_kind(images)}; needed are bytes (uint8) or floats."
        )
    bad = (~images.isfinite().flatten(1).all(1)).nonzero()
    if len(bad):
        raise DataError(
            f"{len(bad)} images of {owner} hold NaN or infinite values, the first is number "
            f"{int(bad[0])}."
        )


def _check_labels(owner: str, labels: Tensor, count: int, classes: int) -> None:
    if labels.dim() != 1 or labels.dtype != torch.int64:
        raise DataError(
            f"The labels of {owner} are {_kind(labels)}; needed is one int64 number per image."
        )
    if len(labels) != count:
        raise DataError(f"There are {count} images but {len(labels)} labels in {owner}.")
    wrong = ((labels < 0) | (labels >= classes)).nonzero()
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"{len(wrong)} labels of {owner} are not among the {classes} classes 0 to "
            f"{classes - 1}: the first is {int(labels[first])}, of image {first}."
        )


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
