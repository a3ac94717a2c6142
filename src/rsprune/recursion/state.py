"""What a recursion has done so far, in memory or in a directory from which it can go on.

Each stage leaves a value, which JSON can hold, and some leave a model. With a directory, values are
in ``state.json`` and models in safetensors files beside it. Both are written whole or not at all,
the model first: a stage is done once its value is recorded, and else runs again from its start.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rsprune.errors import FileFormatError, InvalidParameterError, RunError, StorageError
from rsprune.files import write_atomic
from rsprune.shadow import named_tensors, replica
from rsprune.structure.files import load, save

FORMAT = "rsprune recursion"
VERSION = 1
GIVEN = "given"  # the stage that is done before the first: the model as it was given


class State:
    """The stages that are done, with their values and models.

    Args:
        model: the given, full-size model; it is never changed.
        arguments: what the recursion was called with, ready for JSON; a directory of a recursion
            with other arguments is refused.
        directory: where to keep everything; None keeps it in memory.
    """

    def __init__(
        self,
        model: nn.Module,
        arguments: Mapping[str, Any],
        directory: str | os.PathLike[str] | None,
    ) -> None:
        self._given = model
        self._models: dict[str, nn.Module] = {}
        self._values: dict[str, Any] = {}
        self._arguments: dict[str, Any] = {}
        self._directory = None if directory is None else _opened(directory)
        if self._directory is not None:
            known = {"model": fingerprint(model), **arguments}
            self._arguments = json.loads(json.dumps(known, default=float))  # as it will be read
            self._resume(self._directory)
        self.earlier = frozenset(self._values)  # what an earlier call did

    def once(self, stage: str, compute: Callable[[], Any]) -> Any:
        """The value of a stage, which is computed and recorded unless it was before."""
        if stage not in self._values:
            self._record({**self._values, stage: compute()})
        return self._values[stage]

    def keep(self, stage: str, model: nn.Module) -> None:
        """Keep a model as it is now, under the name of the stage that made it."""
        if self._directory is None:
            self._models[stage] = _copied(model, {})
        else:
            save(model, self._file(self._directory, stage))

    def fetch(self, stage: str) -> nn.Module:
        """A copy of the model of a stage, on the devices and in the modes of the given one."""
        if stage == GIVEN:
            return _copied(self._given, named_tensors(self._given))
        if self._directory is not None:
            return load(self._given, self._file(self._directory, stage))
        model = _copied(self._models[stage], named_tensors(self._given))
        modes = {name: module.training for name, module in self._given.named_modules()}
        for name, module in model.named_modules():
            module.training = modes.get(name, module.training)
        return model

    def drop(self, stage: str) -> None:
        """Free the memory of a model that is not needed any more; files stay."""
        self._models.pop(stage, None)

    def _record(self, values: dict[str, Any]) -> None:
        if self._directory is not None:
            content = {
                "format": FORMAT,
                "version": VERSION,
                "arguments": self._arguments,
                "stages": values,
            }
            text = json.dumps(content, indent=1, allow_nan=False)
            write_atomic(self._directory / "state.json", f"{text}\n")
        self._values = values

    def _resume(self, directory: Path) -> None:
        """Take up what an earlier call recorded; record the arguments if there was none."""
        for leftover in [*directory.glob(".state.json.*"), *directory.glob(".round-*")]:
            with suppress(OSError):  # of a write that was killed
                leftover.unlink()
        path = directory / "state.json"
        if not path.exists():
            self._record({})
            return
        content = _read(path)
        old = {"spread": "even", **content["arguments"]}  # before there was a choice
        _check_arguments(path, old, self._arguments)
        self._values = content["stages"]

    @staticmethod
    def _file(directory: Path, stage: str) -> Path:
        return directory / f"{stage}.safetensors"


def fingerprint(model: nn.Module) -> str:
    """The class of a model and a digest of its parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(named_tensors(model).items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().data)
    return f"{type(model).__qualname__} {digest.hexdigest()[:16]}"


def _copied(model: nn.Module, places: Mapping[str, Tensor]) -> nn.Module:
    """A copy with tensors of its own, on the devices of their namesakes in ``places``, else CPU."""
    copies: dict[str, Tensor] = {}
    for name, tensor in named_tensors(model).items():
        like = places.get(name)
        copy = tensor.detach().to("cpu" if like is None else like.device, copy=True)
        if isinstance(tensor, nn.Parameter):
            copy = nn.Parameter(copy, (tensor if like is None else like).requires_grad)
        copies[name] = copy
    return replica(model, copies)


def _opened(directory: str | os.PathLike[str]) -> Path:
    """The directory, made if it is not there."""
    if not isinstance(directory, str | os.PathLike):
        raise InvalidParameterError(
            "recursive_prune", "directory", "a path or None", directory, "For example 'runs/first'."
        )
    path = Path(directory)
    if path.exists() and not path.is_dir():
        raise InvalidParameterError(
            "recursive_prune", "directory", "a directory, or a path where one can be made",
            str(path), "There is a file of this name.",
        )  # fmt: skip
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"The directory '{path}' could not be made: {error.strerror or error}. Choose a place "
            "that can be written to."
        ) from error
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FileFormatError(f"'{path}' is damaged or cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise FileFormatError(f"'{path}' was not written by rsprune.recursive_prune.")
    if content.get("version") != VERSION:
        raise FileFormatError(
            f"'{path}' has format version {content.get('version')}; this rsprune reads version "
            f"{VERSION}. Use the rsprune that wrote it, or begin anew in another directory."
        )
    return content


def _check_arguments(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Refuse to go on with other arguments, naming all that differ."""
    other = [
        f"'{name}' was {old.get(name)!r} and is {new.get(name)!r}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    if other:
        raise RunError(
            f"'{path.parent}' holds a recursion with other arguments: {'; '.join(other)}. Go on "
            "with the same arguments, or choose another directory."
        )
