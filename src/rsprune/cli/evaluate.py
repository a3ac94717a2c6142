"""``rsprune evaluate``: what a compressed network is worth, measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

import rsprune
from rsprune.data import load as load_data
from rsprune.engine.directory import recipe_of
from rsprune.engine.evaluate import accuracy
from rsprune.engine.events import EventLog
from rsprune.engine.machine import Machine
from rsprune.engine.network import build_network
from rsprune.engine.recipe import Recipe, read_recipe
from rsprune.errors import InvalidParameterError, RunError


def evaluate(
    target: Annotated[
        Path, typer.Argument(metavar="DIR|FILE", help="A run directory, or a file of weights.")
    ],
    model: Annotated[str | None, typer.Option(help="The model, if TARGET is a file.")] = None,
    data: Annotated[str | None, typer.Option(help="The data; default: those of the run.")] = None,
    directory: Annotated[
        str | None, typer.Option(help="Where the data are, if not in the cache.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure the test accuracy, MACs and weights of a compressed network.

    [bold]Examples[/bold]

      rsprune evaluate runs/small_cnn-digits

      rsprune evaluate slim.safetensors --model small_cnn --data digits
    """
    recipe, file = _settings(target, model, data, directory)
    found = measure(recipe, file)
    found["baseline"] = _baseline(target)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    Console(emoji=False).print(_table(str(target), found))


def _settings(
    target: Path, model: str | None, data: str | None, directory: str | None
) -> tuple[Recipe, Path]:
    if target.is_dir():
        if model is not None:
            raise InvalidParameterError(
                "rsprune evaluate", "--model", "left out for a run directory", model,
                "The run's recipe names its model.",
            )  # fmt: skip
        recipe, file = recipe_of(target), target / "model.safetensors"
        if not file.exists():
            raise RunError(
                f"'{target}' has no model.safetensors: the run is not finished. Go on with it: "
                f"rsprune compress --resume {target}"
            )
    else:
        if model is None:
            raise InvalidParameterError(
                "rsprune evaluate", "--model", "given with a file", "none",
                "A file holds weights, not code: name the model, e.g. --model vgg16.",
            )  # fmt: skip
        recipe, file = read_recipe(None, {"model": model}), target
    loading = recipe.loading.model_copy(update={"directory": directory or recipe.loading.directory})
    return recipe.model_copy(update={"data": data or recipe.data, "loading": loading}), file


def measure(recipe: Recipe, file: Path) -> dict[str, Any]:
    """The test accuracy and costs of the network in ``file``, and of its full-size original."""
    data = load_data(recipe.data, seed=recipe.seed, **recipe.loading.model_dump())
    machine = Machine(recipe)
    full = build_network(recipe, data.classes, data.input_shape)
    slim = machine.place(rsprune.load(full, file))
    example = torch.zeros(1, *data.input_shape)
    costs = {
        "before": rsprune.profile(full, example),
        "after": rsprune.profile(slim, example.to(machine.device)),
    }
    return {
        "data": data.name,
        "images": len(data.test),
        "test_accuracy": accuracy(slim, data.test, machine),
        **{
            side: {"macs": cost.macs, "weights": cost.weights, "params": cost.params}
            for side, cost in costs.items()
        },
    }


def _baseline(target: Path) -> float | None:
    """The test accuracy of the original, where the run measured it."""
    path = target / "events.jsonl"
    finish = EventLog(path).find("finish") if path.exists() else None
    return None if finish is None else float(finish["before"]["test_accuracy"])


def _table(name: str, found: dict[str, Any]) -> Table:
    table = Table(title=f"{name}, {found['images']:,} test images of {found['data']}")
    for head in ("", "original", "compressed", ""):
        table.add_column(head, justify="right" if head else "left")
    baseline, now = found["baseline"], found["test_accuracy"]
    lost = "" if baseline is None else f"{100 * (now - baseline):+.2f} points"
    table.add_row(
        "test accuracy", "" if baseline is None else f"{baseline:.2%}", f"{now:.2%}", lost
    )
    for label, key in (("MACs", "macs"), ("weights", "weights"), ("parameters", "params")):
        before, after = found["before"][key], found["after"][key]
        table.add_row(label, f"{before:,}", f"{after:,}", f"{before / max(1, after):.2f}x fewer")
    return table
