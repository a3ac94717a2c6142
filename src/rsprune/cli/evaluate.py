"""``rsprune evaluate``: what a compressed network is worth, measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

import rsprune
from rsprune.cli.before_after import add_accuracy, add_costs
from rsprune.cli.progress import make_console
from rsprune.cli.settings import Subject, parse_settings, recipe_and_file
from rsprune.data import load as load_data
from rsprune.engine.directory import recipe_of
from rsprune.engine.evaluate import accuracies, ranks, same_test_images
from rsprune.engine.events import EventLog
from rsprune.engine.machine import Machine
from rsprune.engine.network import build_network
from rsprune.engine.recipe import Recipe
from rsprune.errors import RecipeError

_OTHERS = ("json",)


def evaluate(
    settings: Subject = None,
    model: Annotated[str | None, typer.Option(help="The model of a file.")] = None,
    data: Annotated[str | None, typer.Option(help="The data; default: those of the run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure the test accuracy, MACs and weights of a compressed network.

    A run, or a published one, needs its data and nothing else. Where there are
    more than ten classes, top-5 accuracy is measured, too.

    [bold]Examples[/bold]

      rsprune evaluate runs/small_cnn-digits

      rsprune evaluate results/resnet20-cifar10

      rsprune evaluate runs/vgg16-cifar10 --loading.directory /data/cifar10 --json

      rsprune evaluate slim.safetensors --model small_cnn --model_options.width 64 --data digits
    """
    target, options = parse_settings(settings or [])
    options |= {k: v for k, v in {"model": model, "data": data}.items() if v is not None}
    if target is None:
        raise RecipeError(["Name a run directory or a file of weights: rsprune evaluate DIR"])
    recipe, file = recipe_and_file(target, options, _OTHERS)
    found = measure(recipe, file)
    found |= _recorded(target, recipe, found["images"])
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    console = make_console()
    line = f"{target}, {found['images']:,} test images of {found['data']}"
    console.print(line, soft_wrap=True)
    console.print(_table(found))
    if found["recorded"] is not None:
        console.print(_remark(found), soft_wrap=True)


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
    first, *more = accuracies(slim, data.test, machine, ranks(data.classes))
    return {
        "data": data.name,
        "images": len(data.test),
        "test_accuracy": first,
        "test_top5": more[0] if more else None,
        **{
            side: {"macs": cost.macs, "weights": cost.weights, "params": cost.params}
            for side, cost in costs.items()
        },
    }


def _recorded(target: Path, recipe: Recipe, images: int) -> dict[str, float | None]:
    """What the run measured, where that was on the same test images: the original is not kept."""
    before, after = {}, {}
    if (target / "events.jsonl").exists():
        log = EventLog(target / "events.jsonl")
        start, finish = log.find("start"), log.find("finish")
        same = same_test_images(recipe_of(target), recipe)
        if start and finish and same and start["sizes"]["test"] == images:
            before, after = finish["before"], finish["after"]
    return {
        "baseline": before.get("test_accuracy"),
        "baseline_top5": before.get("test_top5"),
        "recorded": after.get("test_accuracy"),
    }


def _remark(found: dict[str, Any]) -> str:
    """Which figures were measured now."""
    said, seen = (f"{found[name]:.2%}" for name in ("recorded", "test_accuracy"))
    verdict = "as measured now" if said == seen else f"but {seen} was measured now"
    return (
        "The original's accuracy is the one that the run recorded. For the compressed network it "
        f"recorded {said}, {verdict}."
    )


def _table(found: dict[str, Any]) -> Table:
    table = Table()
    for head in ("", "original", "compressed", ""):
        table.add_column(head, justify="right" if head else "left")
    add_accuracy(table, "test accuracy", found["baseline"], found["test_accuracy"])
    if found["test_top5"] is not None:
        add_accuracy(table, "test accuracy, top-5", found["baseline_top5"], found["test_top5"])
    add_costs(table, found["before"], found["after"])
    return table
