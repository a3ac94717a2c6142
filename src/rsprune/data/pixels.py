"""One image file to a square of pixels: the usual crops of ImageNet's training and evaluation."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rsprune.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

_MARGIN = 256 / 224  # the short side is resized to this many crops, for evaluation
_AREA = (0.08, 1.0)  # of a random crop, as a share of the image
_ASPECT = (3 / 4, 4 / 3)
_TRIES = 10


def read_square(path: Path, size: int, augment: str, seed: int) -> Tensor:
    """The image at ``path`` as bytes (3, size, size).

    Args:
        path: an image in any format and mode that Pillow knows.
        size: the side of the square.
        augment: ``none`` for the centre, ``crop`` or ``crop-flip`` for a random place.
        seed: of what is random.
    """
    pillow = _pillow()
    try:
        with pillow.open(path) as file:
            image = _in_colour(pillow, file)
    except Exception as problem:  # decoders raise what they like
        raise DataError(
            f"{path} is no image that Pillow can read ({problem}). Replace or remove it."
        ) from problem
    if augment == "none":
        square = _centre(pillow, image, size)
    else:
        numbers = random.Random(seed)
        square = image.resize((size, size), pillow.Resampling.BILINEAR, box=_box(image, numbers))
        if augment == "crop-flip" and numbers.random() < 0.5:
            square = square.transpose(pillow.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise DataError(
            "Image folders need Pillow: pip install 'rsprune[data]', or pillow."
        ) from None
    return Image


def _in_colour(pillow: Any, image: Image) -> Image:
    """The image as RGB."""
    if image.mode.startswith("I"):  # grey with 16 bits, which Pillow would clip at 255
        image = pillow.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _centre(pillow: Any, image: Image, size: int) -> Image:
    """The short side resized to 256 / 224 of ``size``, and the centre cut out."""
    short = round(size * _MARGIN)
    width, height = image.size
    scale = short / min(width, height)
    wide, high = (max(short, int(side * scale)) for side in (width, height))
    left, top = round((wide - size) / 2), round((high - size) / 2)
    resized = image.resize((wide, high), pillow.Resampling.BILINEAR)
    return resized.crop((left, top, left + size, top + size))


def _box(image: Image, numbers: random.Random) -> tuple[int, int, int, int]:
    """A random part of the image, of random area and aspect; its centre if none fits."""
    width, height = image.size
    for _ in range(_TRIES):
        area = width * height * numbers.uniform(*_AREA)
        aspect = math.exp(numbers.uniform(*map(math.log, _ASPECT)))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = numbers.randint(0, width - wide), numbers.randint(0, height - high)
            return left, top, left + wide, top + high
    wide = min(width, round(height * _ASPECT[1]))
    high = min(height, round(width / _ASPECT[0]))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high
