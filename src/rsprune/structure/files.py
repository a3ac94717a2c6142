"""``rsprune.save`` and ``rsprune.load``: a pruned model as one safetensors file, without pickle.

The file holds every parameter and buffer, and in its metadata the format's version and the widths
that modules hold as attributes. Loading shrinks a fresh, full-size model to the file's shapes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rsprune.errors import FileFormatError, InvalidParameterError
from rsprune.files import write_tensors
from rsprune.shadow import check_model, named_tensors, replica
from rsprune.structure.attributes import resize
from rsprune.structure.cut import in_format_of

FORMAT = "rsprune"
VERSION = 1


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write ``model`` to ``path``, whole or not at all.

    Args:
        model: any module of plain Python.
        path: the file to write.
        metadata: texts about the model, by name, for the file's header.
    """
    check_model("save", model)
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise InvalidParameterError(
            "save",
            "path",
            "a new or existing file in a directory that exists",
            str(path),
            "Make the directory first, or give a file's name.",
        )
    tensors = {
        name: tensor.detach().contiguous().clone() for name, tensor in named_tensors(model).items()
    }
    widths = json.dumps(_attributes(model), sort_keys=True)
    own = {
        "format": FORMAT,
        "version": str(VERSION),
        "model": type(model).__qualname__,
        "widths": widths,
        "checksum": _checksum(tensors, widths),
    }
    write_tensors(target, tensors, {**_texts(metadata or {}, own), **own})


def load(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """A model of the class and with the weights of ``path``, made by shrinking a fresh ``model``.

    Args:
        model: a full-size instance, as its constructor makes it; it is left as it was.
        path: a file that :func:`save` wrote.
    """
    check_model("load", model)
    metadata, tensors = _read(Path(path))
    originals = named_tensors(model)
    if metadata["model"] != type(model).__qualname__:
        raise FileFormatError(
            f"'{path}' is of another model: of the class {metadata['model']}, not "
            f"{type(model).__qualname__}. Give a full-size model of that class."
        )
    _check_fit(Path(path), originals, tensors)
    new = {name: _like(originals[name], tensors[name]) for name in originals}
    slim = replica(model, new)
    resize(slim)
    for name, attributes in json.loads(metadata["widths"]).items():
        module = slim.get_submodule(name)
        for attribute, value in attributes.items():
            held = getattr(module, attribute, None)
            setattr(module, attribute, type(held)(value) if isinstance(held, tuple) else value)
    return slim


def _texts(metadata: Mapping[str, str], own: Mapping[str, str]) -> Mapping[str, str]:
    for name, text in metadata.items():
        if name in own or not isinstance(name, str) or not isinstance(text, str):
            raise InvalidParameterError(
                "save", "metadata", f"texts by names other than {', '.join(own)}", {name: text},
                "Choose another name, or turn the value into text with json.dumps.",
            )  # fmt: skip
    return metadata


def _attributes(model: nn.Module) -> dict[str, dict[str, Any]]:
    """The integers and tuples of integers that the modules hold: widths may be among them.

    Those of torch's own layers follow from their parameters, except in layers that have none.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, module in model.named_modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if own and type(module).__module__.startswith("torch.nn."):
            continue
        for attribute, value in vars(module).items():
            if attribute.startswith("_") or isinstance(value, bool):
                continue
            numbers = value if isinstance(value, list | tuple) else [value]
            if numbers and all(type(n) is int for n in numbers):
                found.setdefault(name, {})[attribute] = value
    return found


def _read(path: Path) -> tuple[Mapping[str, str], dict[str, Tensor]]:
    if not path.is_file():
        raise FileFormatError(f"There is no file '{path}'; is it a directory, or misspelt?")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise FileFormatError(f"'{path}' is damaged or not a safetensors file: {error}") from error
    if metadata.get("format") != FORMAT:
        raise FileFormatError(f"'{path}' was not written by rsprune.save, whose files load reads.")
    if metadata.get("version") != str(VERSION):
        raise FileFormatError(
            f"'{path}' has format version {metadata.get('version')}; this rsprune reads version "
            f"{VERSION}. Use the rsprune that wrote it, or write it anew."
        )
    if metadata.get("checksum") != _checksum(tensors, metadata.get("widths", "")):
        raise FileFormatError(
            f"'{path}' is damaged: its checksum does not fit its contents. Copy or write it anew."
        )
    return metadata, tensors


def _checksum(tensors: Mapping[str, Tensor], widths: str) -> str:
    digest = hashlib.sha256(widths.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)} {tensors[name].dtype}".encode())
        digest.update(tensors[name].contiguous().cpu().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_fit(path: Path, model: Mapping[str, Tensor], file: Mapping[str, Tensor]) -> None:
    """Refuse a file of another model, before anything is made."""
    missing = [name for name in model if name not in file]
    extra = [name for name in file if name not in model]
    if missing or extra:
        what = f"lacks '{missing[0]}'" if missing else f"has '{extra[0]}', which the model lacks"
        raise FileFormatError(f"'{path}' is of another model: it {what}.")
    for name, tensor in model.items():
        shape = file[name].shape
        if len(shape) != tensor.dim() or any(
            a > b for a, b in zip(shape, tensor.shape, strict=True)
        ):
            raise FileFormatError(
                f"'{path}' is of another model: '{name}' is {tuple(shape)} there and "
                f"{tuple(tensor.shape)} here; load shrinks a full-size model."
            )


def _like(original: Tensor, value: Tensor) -> Tensor:
    value = in_format_of(original, value.to(original.device))
    return (
        nn.Parameter(value, original.requires_grad) if isinstance(original, nn.Parameter) else value
    )
