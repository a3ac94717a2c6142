"""CIFAR-10 with some of its training images, as the data of a recipe.

    data = "benchmarks.subset:cifar10_12500"

Whatever the number, the images are drawn once, of every class alike; all test images are there.
Normalisation, augmentation and the validation part are those that the recipe asks for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from rsprune.data.cifar10 import read_cifar10
from rsprune.data.images import Labelled
from rsprune.data.split import split
from rsprune.errors import InvalidParameterError


def __getattr__(name: str) -> Callable[[], tuple[Labelled, Labelled]]:
    found = re.fullmatch(r"cifar10_(\d+)", name)
    if found is None:
        raise AttributeError(f"{__name__} has factories such as cifar10_12500, not {name}")
    return partial(drawn, int(found[1]))


def drawn(count: int) -> tuple[Labelled, Labelled]:
    """``count`` training images and all test images, with their labels."""
    raw = read_cifar10()
    images, labels = raw.train
    if count == len(labels):
        return raw.train, raw.test
    most = len(labels) - raw.classes  # one of every class is left
    if not raw.classes <= count <= most:
        raise InvalidParameterError(
            "the benchmark", "images", f"in the range [{raw.classes}, {most}], or {len(labels)}",
            count,
        )  # fmt: skip
    _, index = split(labels, (count + 0.5) / len(labels), seed=0)  # the half survives rounding
    return (images[index], labels[index]), raw.test
