"""Data of the user's own: ``package.module:factory``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rsprune.data.images import ImageSplit, Labelled, Raw
from rsprune.data.part import Data
from rsprune.errors import DataError, InvalidParameterError, RsPruneError
from rsprune.factories import find_factory

WANTED = "a Data, an ImageSplit, or ((images, labels), (images, labels)) for train and test"


def made(name: str) -> Data | Raw:
    """What the factory ``name`` returns, as a Data or as tensors.

    Args:
        name: ``package.module:factory``; the factory is called without arguments.
    """
    factory = find_factory("load", name)
    try:
        result = factory()
    except RsPruneError:
        raise
    except Exception as error:
        raise DataError(f"Loading '{name}' raised {type(error).__name__}: {error}") from error
    if isinstance(result, Data):
        return result
    if isinstance(result, ImageSplit):
        train, test = (_labelled(name, (p.images, p.labels)) for p in (result.train, result.test))
        return Raw(train, test, result.classes, name)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise InvalidParameterError(
            "load", "name", f"a factory that returns {WANTED}",
            f"{name}, which returns {type(result).__name__}",
        )  # fmt: skip
    train, test = (_labelled(name, part) for part in result)
    return Raw(train, test, int(train[1].max()) + 1 if len(train[1]) else 0, name)


def _labelled(name: str, part: Any) -> Labelled:
    """Images and labels as tensors, the labels as int64 if they are whole numbers."""
    try:
        images, labels = (torch.as_tensor(values) for values in part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"'{name}' must return {WANTED}: {error}") from error
    return images, _whole(labels)


def _whole(labels: Tensor) -> Tensor:
    kind = labels.dtype
    if kind.is_floating_point or kind.is_complex or kind == torch.bool:
        return labels  # refused by name when the data are checked
    return labels.long()
