"""The network of a run: built for its data, with trained weights where the recipe names some."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from rsprune.engine.growing import small_size
from rsprune.engine.recipe import Recipe
from rsprune.errors import FileFormatError, InvalidParameterError, RsPruneError
from rsprune.models import build

_FEW = 3  # names that a message lists


def build_network(recipe: Recipe, classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """The recipe's model at full size, with random weights that depend on the seed alone."""
    torch.manual_seed(recipe.seed)
    fitting = _fitting_options(recipe.model, classes, input_shape[0])
    model = build(recipe.model, **{**fitting, **recipe.model_options})
    _check_scores(recipe.model, model, classes, input_shape)
    return model


def check_small_images(
    recipe: Recipe, model: nn.Module, classes: int, input_shape: tuple[int, ...]
) -> None:
    """Refuse, before any training, a model that does not take the images it begins with."""
    stages = {"finetune": recipe.finetune} | (
        {"baseline": recipe.baseline} if recipe.weights is None else {}
    )
    for name, stage in stages.items():
        remedy = f"Raise {name}.small (now {stage.small:g}); at 1 images have their full size."
        size = small_size(input_shape[1:], stage.small)
        if stage.epochs and size != list(input_shape[1:]):
            _check_scores(recipe.model, model, classes, (input_shape[0], *size), remedy)


def _fitting_options(name: str, classes: int, channels: int) -> dict[str, Any]:
    """What a model of each source calls the number of classes and of input channels."""
    source, colon, _ = name.partition(":")
    if source == "torchvision":
        return {"num_classes": classes}
    if source == "timm":
        return {"num_classes": classes, "in_chans": channels}
    if colon:
        return {}
    return {"classes": classes} | ({"channels": channels} if name == "small_cnn" else {})


def _check_scores(
    name: str, model: nn.Module, classes: int, input_shape: tuple[int, ...], remedy: str = ""
) -> None:
    """Refuse, before any training, a model whose output is not one score for each class.

    Args:
        name: of the model.
        model: which is left in its mode.
        classes: the number of scores.
        input_shape: of an image.
        remedy: what to do about any fault; by default it depends on the fault.
    """
    mode = model.training
    try:
        with torch.no_grad():
            scores = model.eval()(torch.zeros(2, *input_shape))
    except Exception as error:
        raise RsPruneError(
            f"The model '{name}' does not take images of {'x'.join(map(str, input_shape))}: "
            f"{type(error).__name__}: {error}. "
            + (remedy or "Choose other data, or set model_options.")
        ) from error
    model.train(mode)
    if not isinstance(scores, Tensor):
        raise InvalidParameterError(
            "the recipe", "model", "one that returns its scores as a tensor",
            f"{name}, which returns a {type(scores).__name__}",
            remedy or "Wrap it in a module that does.",
        )  # fmt: skip
    if tuple(scores.shape) != (2, classes):
        raise InvalidParameterError(
            "the recipe", "model", f"one that gives scores of shape (N, {classes})",
            f"{name}, which gives {tuple(scores.shape)}",
            remedy
            or f"The labels of the data run from 0 to {classes - 1}: set the model's number of "
            "classes in model_options.",
        )  # fmt: skip


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a state dict (``.pt``, ``.pth`` or ``.safetensors``) into ``model``."""
    state = _read_state(path)
    own = model.state_dict()
    missing = [name for name in own if name not in state and "num_batches_tracked" not in name]
    extra = [name for name in state if name not in own]
    odd = [n for n in own if n in state and state[n].shape != own[n].shape]
    if missing or extra or odd:
        faults = {"lacks": missing, "also has": extra, "has another shape in": odd}
        words = "; ".join(f"{verb} {_listed(names)}" for verb, names in faults.items() if names)
        raise FileFormatError(f"'{path}' does not fit the model: it {words}.")
    sick = [name for name, tensor in state.items() if not tensor.isfinite().all()]
    if sick:
        raise FileFormatError(f"'{path}' holds NaN or infinite numbers in {_listed(sick)}.")
    model.load_state_dict({**own, **state})


def _read_state(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileFormatError(
            f"There is no file '{path}' of weights. Give its path with --weights FILE, "
            "or weights in the recipe; a comment there may say where it comes from."
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(str(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice on files that it then refuses
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise FileFormatError(
            f"'{path}' holds more than tensors, and reading it could run any code. Save the "
            "weights alone, with torch.save(model.state_dict(), path)."
        ) from error
    except Exception as error:  # readers raise anything
        reason = next(iter(str(error).splitlines()), "it is empty")
        raise FileFormatError(
            f"'{path}' is damaged, or no file of weights: {type(error).__name__}: {reason}"
        ) from error
    for key in ("state_dict", "model"):  # beside which a training keeps other things
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in found.items()
    ):
        raise FileFormatError(f"'{path}' holds no state dict, a mapping of names to tensors.")
    return {name.removeprefix("module."): tensor for name, tensor in found.items()}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return ", ".join(map(repr, names[:_FEW])) + more
