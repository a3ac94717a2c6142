"""Fashion-MNIST: 60,000 training and 10,000 test images of 28 x 28 pixels, from its IDX files."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from rsprune.data.images import ImageSplit, Raw, standardised
from rsprune.errors import DataError

DEBIAN_DIRECTORY = Path("/usr/share/datasets/fashion-mnist")


def load_fashion_mnist(directory: str | os.PathLike[str] = DEBIAN_DIRECTORY) -> ImageSplit:
    """Read the four gzipped IDX files in ``directory`` (by default where Debian puts them)."""
    return standardised(read_fashion_mnist(directory))


def read_fashion_mnist(directory: str | os.PathLike[str] = DEBIAN_DIRECTORY) -> Raw:
    """The four gzipped IDX files in ``directory``, their pixels as they are."""
    train, test = (
        (
            _read_idx(Path(directory) / f"{part}-images-idx3-ubyte.gz")[:, None],
            _read_idx(Path(directory) / f"{part}-labels-idx1-ubyte.gz").long(),
        )
        for part in ("train", "t10k")
    )
    return Raw(train, test, 10, str(directory))


def _read_idx(path: Path) -> Tensor:
    """An IDX file of unsigned bytes: 0 0 8 ndim, the sizes as big-endian int32, the data."""
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"Fashion-MNIST is not in {path.parent}: {path.name} is missing. On Debian and Ubuntu: "
            "apt-get install dataset-fashion-mnist. Elsewhere, put the four .gz files of the "
            "original release into a directory and pass it."
        ) from None
    except (OSError, EOFError, zlib.error) as problem:
        raise DataError(f"{path} cannot be read: {problem}. Get the file again.") from problem
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"{path} is no IDX file of bytes. Get the file again.")
    dims = content[3]
    sizes = struct.unpack_from(f">{dims}I", content, 4) if len(content) >= 4 + 4 * dims else ()
    if not sizes or len(content) != 4 + 4 * dims + math.prod(sizes):
        raise DataError(f"{path} is incomplete. Get the file again.")
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 + 4 * dims)
    return data.view(sizes)
