"""The full-size network of a run or of a file, where its data are not needed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from rsprune.cli.sizes import parse_sizes
from rsprune.engine.events import EventLog
from rsprune.engine.network import build_network
from rsprune.engine.recipe import Recipe
from rsprune.errors import RecipeError, RunError
from rsprune.models import build, input_shape
from rsprune.report.read import EVENTS

_KNOWN = ("torchvision:", "timm:")  # whose models are for images of a usual size


def full_network(
    owner: str, target: Path, recipe: Recipe, sizes: str, batch: int
) -> tuple[nn.Module, Tensor]:
    """The network with random weights, and random inputs, always the same.

    Args:
        owner: the command, for errors.
        target: a run directory, which knows its inputs, or a file of weights.
        recipe: of it.
        sizes: one input of a file's model, if it is not the usual one, as in ``3x32x32``.
        batch: how many inputs.
    """
    if not target.is_dir():
        remedy = "E.g. --input 3x224x224, without the batch."
        if not sizes and ":" in recipe.model and not recipe.model.startswith(_KNOWN):
            raise RecipeError([f"--input: say how large one input of {recipe.model} is. {remedy}"])
        shape = parse_sizes(owner, sizes, remedy) if sizes else input_shape(recipe.model)
        full = build(recipe.model, **recipe.model_options)
    else:
        if sizes:
            raise RecipeError(["--input: the run knows its inputs; leave it out."])
        start = EventLog(target / EVENTS).find("start")
        if start is None:
            raise RunError(f"'{target}' has no {EVENTS} that says what its inputs are.")
        shape = tuple(start["input_shape"])
        full = build_network(recipe, start["classes"], shape)
    return full, torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0))
