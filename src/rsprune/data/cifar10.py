"""CIFAR-10 from its files: 50,000 training and 10,000 test images of 3 x 32 x 32 pixels.

Three formats, told apart by what is there: the original release for Python
(``cifar-10-batches-py``), the one for C (``cifar-10-batches-bin``), and ``cifar10.npz``.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rsprune.data.cache import cache_directory
from rsprune.data.images import Labelled, Raw
from rsprune.data.scale import CIFAR10
from rsprune.errors import DataError

CLASSES = 10
SIDE = 32
NPZ = "cifar10.npz"
BY_HAND = (
    "unpack one of the original archives (cifar-10-python.tar.gz, cifar-10-binary.tar.gz) and give "
    "its directory: --loading.directory DIR on the command line, directory=DIR to load(), or "
    "RSPRUNE_DATA=DIR in the environment."
)
HOW_TO_GET_IT = f"Get it with: rsprune data cifar10. Or {BY_HAND}"

_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_PIXELS = 3 * SIDE * SIDE
Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]  # images (N, 3, 32, 32), labels (N,)
Source = tuple[Path, Callable[[Path], tuple[Arrays, Arrays]]]  # what to read, and what reads it


def read_cifar10(directory: str | os.PathLike[str] | None = None) -> Raw:
    """Read CIFAR-10 from ``directory``, by default from where it is fetched to."""
    place, read = _find(Path(directory) if directory is not None else cache_directory())
    train, test = read(place)
    return Raw(_tensors(place, train), _tensors(place, test), CLASSES, str(place), usual=CIFAR10)


def is_there(place: Path) -> bool:
    """Whether ``place`` holds CIFAR-10 in one of its formats; nothing is read."""
    return _found(place) is not None


def _find(place: Path) -> Source:
    found = _found(place)
    if found is None:
        raise DataError(f"CIFAR-10 is not in {place}. {HOW_TO_GET_IT}")
    return found


def _found(place: Path) -> Source | None:
    """The file or directory to read, and what reads it."""
    if place.is_file():
        return place, _read_npz
    if (place / NPZ).is_file():
        return place / NPZ, _read_npz
    for folder in (place, place / "cifar-10-batches-py"):
        if (folder / _BATCHES[0]).is_file():
            return folder, _read_python
    for folder in (place, place / "cifar-10-batches-bin"):
        if (folder / f"{_BATCHES[0]}.bin").is_file():
            return folder, _read_binary
    return None


def _read_python(folder: Path) -> tuple[Arrays, Arrays]:
    train = _joined([_python_batch(folder / batch) for batch in _BATCHES])
    return train, _python_batch(folder / "test_batch")


def _read_binary(folder: Path) -> tuple[Arrays, Arrays]:
    train = _joined([_binary_batch(folder / f"{batch}.bin") for batch in _BATCHES])
    return train, _binary_batch(folder / "test_batch.bin")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Whatever goes wrong with a file becomes an error that names it and says what to do."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"CIFAR-10 is incomplete: {path} is missing. {HOW_TO_GET_IT}") from None
    except Exception as problem:  # a damaged pickle can raise anything
        raise DataError(f"{path} cannot be read: {problem}. {HOW_TO_GET_IT}") from problem


def _joined(batches: list[Arrays]) -> Arrays:
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numbers, strings, lists, dicts and numpy arrays; refuses everything that runs."""

    _ALLOWED = frozenset(
        [("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")]
        + [
            (f"numpy.{core}.{module}", name)
            for core in ("core", "_core")
            for module, name in (("multiarray", "_reconstruct"), ("numeric", "_frombuffer"))
        ]
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return super().find_class(module, name)


def _python_batch(path: Path) -> Arrays:
    """A pickled dict: data (N, 3072) uint8, and labels, a list."""
    with _explained(path), path.open("rb") as file:
        # latin1 reads the byte strings of Python 2, with which the release was made
        content = _ArraysOnly(file, encoding="latin1").load()
        if "data" not in content:
            content = {k.decode(): v for k, v in content.items() if isinstance(k, bytes)}
        images = np.asarray(content["data"], dtype=np.uint8).reshape(-1, 3, SIDE, SIDE)
        return images, np.asarray(content["labels"])


def _binary_batch(path: Path) -> Arrays:
    """Records of 3,073 bytes: the label, then the pixels, colour by colour."""
    with _explained(path):
        content = np.fromfile(path, dtype=np.uint8)
        if not len(content) or len(content) % (1 + _PIXELS):
            raise ValueError(f"its {len(content)} bytes are not records of {1 + _PIXELS}")
        records = content.reshape(-1, 1 + _PIXELS)
        return records[:, 1:].reshape(-1, 3, SIDE, SIDE), records[:, 0]


# What the arrays of an .npz file are called: here, and by Keras.
_NAMES = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
)


def _read_npz(path: Path) -> tuple[Arrays, Arrays]:
    with _explained(path), np.load(path, allow_pickle=False) as content:
        names = next((names for names in _NAMES if set(names) <= set(content)), None)
        if names is None:
            raise ValueError(f"it has to hold {', '.join(_NAMES[0])}, not {', '.join(content)}")
        arrays = [content[name] for name in names]
        return (
            (_channels_first(arrays[0]), arrays[1].reshape(-1)),
            (_channels_first(arrays[2]), arrays[3].reshape(-1)),
        )


def _channels_first(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if images.dtype != np.uint8:
        raise ValueError(f"its images are {images.dtype}, not uint8")
    if images.shape[1:] == (SIDE, SIDE, 3):
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    if images.shape[1:] != (3, SIDE, SIDE):
        raise ValueError(f"its images are {images.shape}, not (N, 3, 32, 32) or (N, 32, 32, 3)")
    return images


def _tensors(place: Path, arrays: Arrays) -> Labelled:
    images, labels = arrays
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"The labels in {place} are {labels.dtype}, not whole numbers.")
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))
