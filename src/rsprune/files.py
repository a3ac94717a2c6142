"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rsprune.errors import StorageError


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path``, which takes its place if the body succeeds.

    Raises:
        StorageError: if the disk is full or the directory cannot be written to; what was at
            ``path`` before is then still there.
    """
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise _explained(target, error) from error
    temporary = Path(name)
    try:
        yield temporary
        _flush(temporary)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's files are their owner's alone
        os.replace(temporary, target)
        _flush(target.parent)
    except OSError as error:
        raise _explained(target, error) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary directory for files beside ``path``, which takes its place if all goes well.

    Raises:
        StorageError: as :func:`atomic_path` does; a directory that was at ``path`` before is then
            still there.
    """
    target = Path(path).resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        home = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise _explained(target, error) from error
    new, old = home / "new", home / "old"
    try:
        new.mkdir()  # unlike mkdtemp's, for everyone to read
        yield new
        for file in new.iterdir():
            _flush(file)
        if target.exists():
            os.rename(target, old)
        os.rename(new, target)
        _flush(target.parent)
    except OSError as error:
        raise _explained(target, error) from error
    finally:
        if old.exists() and not target.exists():
            os.rename(old, target)
        shutil.rmtree(home, ignore_errors=True)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a place where nothing can be written, before the work whose result goes there."""
    target = Path(path)
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise _explained(target, error) from error


def write_atomic(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write ``data`` to ``path``, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file, whole or not at all; equal contents make equal files."""
    with atomic_path(path) as temporary:
        try:
            save_file(dict(tensors), temporary, dict(metadata))
        except SafetensorError as error:  # a full disk, in its words
            raise OSError(str(error)) from error
        _sort_metadata(temporary)


def _sort_metadata(path: Path) -> None:
    """Put in order what safetensors writes in a random one."""
    with open(path, "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        assert len(text) <= length
        file.seek(8)
        file.write(text.ljust(length))


def _flush(path: Path) -> None:
    """Have the system write a file, or a directory's entries, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _explained(target: Path, error: OSError) -> StorageError:
    return StorageError(
        f"'{target}' could not be written: {error.strerror or error}. What was there before is "
        "untouched. Free some space or choose a directory that can be written to, and try again."
    )
