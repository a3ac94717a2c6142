"""What ``rsprune export`` exports: the model of a run or of a file, with inputs and facts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import rsprune
from rsprune.cli.full import full_network
from rsprune.cli.settings import Options, recipe_and_file
from rsprune.cli.sizes import typed_sizes
from rsprune.data import Data
from rsprune.data import load as load_data
from rsprune.data.loading import change_folder
from rsprune.engine.directory import recipe_of
from rsprune.engine.evaluate import accuracy, same_test_images
from rsprune.engine.machine import Machine
from rsprune.engine.network import build_network
from rsprune.engine.recipe import Recipe
from rsprune.errors import DataError, RecipeError
from rsprune.exporting import Exported
from rsprune.report.read import EVENTS, read_run
from rsprune.report.run import Run

_OWNER = "rsprune export"
_OTHERS = ("input", "format", "out", "fold", "int8", "force", "json")  # that are no keys
_INPUTS = 8  # on which file and model are compared first
_CALIBRATION_BATCHES, _CALIBRATION_BATCH = 8, 32  # training images for int8


@dataclass(frozen=True)
class Exportable:
    """A compressed model that can be exported.

    Attributes:
        slim: the model.
        full: the full-size one it was loaded into.
        example: inputs to compare on.
        inputs: what these are, in words.
        texts: what the file is to say about itself.
        recipe: that names the model and the data.
        data: None if there are none.
    """

    slim: nn.Module
    full: nn.Module
    example: Tensor
    inputs: str
    texts: dict[str, str]
    recipe: Recipe
    data: Data | None = None

    def export(self, path: Path, kind: str, *, fold: bool = False, force: bool) -> Exported:
        """Write the model as it is."""
        known = self.data is None or "test_accuracy" in self.texts
        return rsprune.export(
            self.slim, self.example, path, format=kind, fold=fold, metadata=self.texts, force=force,
            full=self.full if kind == "safetensors" else None,
            evaluate=None if known else self._accuracy,
        )  # fmt: skip

    def quantise(self, path: Path, *, force: bool) -> Exported:
        """Write it in 8 bits, calibrated with training images and measured on test images."""
        if self.data is None:
            raise RecipeError(
                ["--int8: there is no calibration data; name the data, e.g. --data digits."]
            )
        epoch = self.data.train.epoch(_CALIBRATION_BATCH, seed=self.recipe.seed, epoch=0)
        batches = [images for images, _ in islice(epoch, _CALIBRATION_BATCHES)]
        texts = {name: text for name, text in self.texts.items() if "accuracy" not in name}
        return rsprune.export(
            self.slim, self.example, path, int8=batches, metadata=texts, force=force,
            evaluate=self._accuracy,
        )  # fmt: skip

    def _accuracy(self, run: Callable[..., Any]) -> float:
        """The test accuracy of whatever is called like the model."""
        assert self.data is not None
        machine = Machine(self.recipe.model_copy(update={"device": "cpu", "precision": "no"}))
        return accuracy(_Called(run), self.data.test, machine)


def of_run(directory: Path, options: Options, *, calibrated: bool = False) -> Exportable:
    """The model of a finished run, with test images; without its data, with random inputs.

    Args:
        directory: of the run.
        options: keys of its recipe that are to be others.
        calibrated: whether it cannot do without the data.
    """
    recipe, file = recipe_and_file(directory, options, _OTHERS)
    run = read_run(directory) if (directory / EVENTS).exists() else None
    texts = _texts(recipe, directory, run)
    try:
        return _with_data(recipe, file, texts)
    except DataError as error:
        if calibrated:
            raise DataError(f"There is no calibration data for --int8: {error}") from error
        if run is None or run.start.classes is None:
            raise
    return _without_data(directory, recipe, file, "", texts)


def of_file(file: Path, options: Options, sizes: str) -> Exportable:
    """The model of a file of weights, with test images where the options name data.

    Args:
        file: that ``rsprune.save`` wrote.
        options: keys of a recipe, the model among them.
        sizes: one input, if there are no data and it is not the model's usual one.
    """
    recipe, _ = recipe_and_file(file, options, _OTHERS)
    texts = {"name": recipe.model}
    if "data" in options:
        if sizes:
            raise RecipeError(["--input: the data have their own size; leave it out."])
        return _with_data(recipe, file, texts)
    return _without_data(file, recipe, file, sizes, texts)


def _with_data(recipe: Recipe, file: Path, texts: dict[str, str]) -> Exportable:
    data = load_data(recipe.data, seed=recipe.seed, **recipe.loading.model_dump())
    full = build_network(recipe, data.classes, data.input_shape)
    images, _ = next(iter(data.test.in_order(_INPUTS)))
    slim = rsprune.load(full, file)
    return Exportable(slim, full, images, "test images", texts, recipe, data)


def _without_data(
    target: Path, recipe: Recipe, file: Path, sizes: str, texts: dict[str, str]
) -> Exportable:
    full, numbers = full_network(_OWNER, target, recipe, sizes, _INPUTS)
    size = typed_sizes(numbers.shape[1:])
    return Exportable(
        rsprune.load(full, file), full, numbers, f"random inputs of {size}", texts, recipe
    )


def _texts(recipe: Recipe, directory: Path, run: Run | None) -> dict[str, str]:
    """What is known of a run's model: its name, its data, its recipe, its accuracy."""
    contents = (directory / "recipe.toml").read_bytes()
    texts = {
        "name": recipe.model,
        "data": change_folder(recipe.data, lambda path: Path(path).name),  # not this machine's
        "recipe_sha256": hashlib.sha256(contents).hexdigest(),
    }
    if run and run.finish and same_test_images(recipe, recipe_of(directory)):
        after = run.finish.after
        known = {
            "validation_accuracy": after.validation_accuracy,
            "test_accuracy": after.test_accuracy,
        }
        texts |= {name: json.dumps(value) for name, value in known.items() if value is not None}
    return texts


class _Called(nn.Module):
    """A function as a module."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, images: Tensor) -> Any:
        return self.run(images)
