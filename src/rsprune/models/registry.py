"""Models by name: rsprune's own, torchvision's, timm's and yours.

``vgg16``, ``resnet50``, ... are defined here; ``torchvision:NAME`` and ``timm:NAME`` come from
those libraries, with random weights; ``package.module:factory`` is any callable that returns a
module.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from rsprune.errors import InvalidParameterError, RsPruneError
from rsprune.factories import find_factory
from rsprune.models.cifar_resnet import CifarResNet
from rsprune.models.resnet import ResNet
from rsprune.models.small_cnn import SmallCNN
from rsprune.models.vgg import VGG16

Shape = tuple[int, ...]

_CIFAR: Shape = (3, 32, 32)
_IMAGENET: Shape = (3, 224, 224)
_FEW = 30  # names that an error message can list


@dataclass(frozen=True)
class Entry:
    """How to make a model, and the shape of one input, without the batch."""

    factory: Callable[..., nn.Module]
    input_shape: Shape


_MODELS: dict[str, Entry] = {
    "small_cnn": Entry(SmallCNN, (1, 28, 28)),
    "vgg16": Entry(VGG16, _CIFAR),
    **{f"resnet{n}": Entry(partial(CifarResNet, n), _CIFAR) for n in (20, 32, 44, 56, 110)},
    **{f"resnet{n}": Entry(partial(ResNet, n), _IMAGENET) for n in (18, 34, 50, 101, 152)},
}


def names() -> tuple[str, ...]:
    """The names of rsprune's own models."""
    return tuple(_MODELS)


def build(name: str, **options: Any) -> nn.Module:
    """A new model with random weights.

    Args:
        name: one of :func:`names`, ``torchvision:NAME``, ``timm:NAME`` or
            ``package.module:factory``.
        options: keyword arguments for the model, e.g. ``classes=100``.
    """
    entry = find(name)
    try:
        model = entry.factory(**options)
    except RsPruneError:
        raise
    except Exception as error:
        remedy = _remedy(entry.factory, error)
        raise RsPruneError(
            f"Building '{name}' raised {type(error).__name__}: {error}. {remedy}".rstrip()
        ) from error
    if not isinstance(model, nn.Module):
        raise InvalidParameterError(
            "build", "name", "a factory that returns a torch.nn.Module",
            f"{name}, which returns {type(model).__name__}", "Return the model itself.",
        )  # fmt: skip
    return model


def _remedy(factory: object, error: Exception) -> str:
    if isinstance(factory, nn.Module):
        return "It is a module already: name a function or class that makes one."
    if isinstance(error, TypeError) and "argument" in str(error):
        return "Arguments of a model are its options: model_options in a recipe."
    return ""


def input_shape(name: str) -> Shape:
    """The shape of one usual input of the model ``name``, without the batch."""
    return find(name).input_shape


def find(name: str) -> Entry:
    """The entry of the model ``name``, which is not built yet."""
    if name in _MODELS:
        return _MODELS[name]
    source, colon, rest = name.partition(":")
    if not (colon and source and rest):
        raise _unknown("", name, names())
    if source == "torchvision":
        return _torchvision(rest)
    if source == "timm":
        return _timm(rest)
    return Entry(find_factory("build", name), _IMAGENET)


def _torchvision(name: str) -> Entry:
    models = _library("torchvision", "torchvision.models")
    known = models.list_models()
    if name not in known:
        raise _unknown("torchvision:", name, known)
    builder = models.get_model_builder(name)
    # A segmentation or detection model would download its backbone's weights otherwise.
    wanted = {"weights", "weights_backbone"} & set(inspect.signature(builder).parameters)
    factory = partial(_quietly, builder, **dict.fromkeys(wanted))
    return Entry(factory, (3, 299, 299) if name == "inception_v3" else _IMAGENET)


def _quietly(builder: Callable[..., nn.Module], **options: Any) -> nn.Module:
    """Without torchvision's announcements of other initial weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return builder(**options)


def _timm(name: str) -> Entry:
    timm = _library("timm", "timm")
    if not timm.is_model(name):
        raise _unknown("timm:", name, timm.list_models())
    settings = timm.get_pretrained_cfg(name)
    shape = tuple(settings.input_size) if settings else _IMAGENET
    return Entry(partial(timm.create_model, name), shape)


def _library(package: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise RsPruneError(
            f"Models of {package} need a package that is not installed ({error}). "
            f"Install it with: pip install {package}"
        ) from error
    except Exception as error:
        raise RsPruneError(
            f"{package} is installed but does not import ({error}). "
            f"Install the version that was made for torch {torch.__version__}."
        ) from error


def _unknown(source: str, name: str, known: Iterable[str]) -> InvalidParameterError:
    """The error for a name that is not among ``known``; lists them if they are few."""
    known = list(known)
    listed = ", ".join(source + n for n in known)
    allowed = (
        f"a known model: {listed}" if len(known) <= _FEW else f"a known model of {source[:-1]}"
    )
    if not source:
        allowed += "; or torchvision:NAME, timm:NAME or package.module:factory"
    close = [source + n for n in difflib.get_close_matches(name, known)]
    guess = f"Did you mean {' or '.join(close)}?" if close else ""
    return InvalidParameterError("build", "name", allowed, source + name, guess)
