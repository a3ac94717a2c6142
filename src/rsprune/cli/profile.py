"""``rsprune profile``: what a model costs, layer by layer."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import torch
import typer
from rich.table import Table

from rsprune.cli.progress import make_console
from rsprune.cli.sizes import parse_sizes
from rsprune.metrics import Profile
from rsprune.metrics import profile as count
from rsprune.models import build, input_shape

_REMEDY = "E.g. --input 3x224x224; the batch is given by --batch."


def profile(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="vgg16, resnet50, ..., torchvision:NAME, timm:NAME or package.module:factory.",
        ),
    ],
    input: Annotated[
        str,
        typer.Option(metavar="SIZES", help="One input, e.g. 3x224x224; else the model's usual."),
    ] = "",
    batch: Annotated[int, typer.Option(min=1, help="Inputs in a batch.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Count the weights and multiply-accumulates of a model, layer by layer.

    Nothing is computed, and no trained weights are needed.

    [bold]Examples[/bold]

      rsprune profile vgg16

      rsprune profile torchvision:mobilenet_v3_large --input 3x192x192

      rsprune profile my_package.nets:MyNet --input 1x28x28 --json
    """
    sizes = parse_sizes("rsprune profile", input, _REMEDY) if input else input_shape(model)
    shape = (batch, *sizes)
    found = count(build(model), torch.zeros(shape))
    if as_json:
        typer.echo(json.dumps({"model": model, "input_shape": shape, **asdict(found)}, indent=2))
        return
    make_console().print(_table(f"{model}, input {_joined(shape)}", found))


def _joined(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _table(title: str, found: Profile) -> Table:
    table = Table(title=title, caption=f"{found.params:,} parameters with biases and norms")
    table.add_column("module", overflow="fold")
    table.add_column("output", no_wrap=True)
    for head in ("weights", "MACs", "share"):
        table.add_column(head, justify="right", no_wrap=True)
    for layer in found.layers:
        table.add_row(
            layer.name or "(model)", _joined(layer.output_shape),
            f"{layer.weights:,}", f"{layer.macs:,}", f"{layer.share:.1%}",
        )  # fmt: skip
    if found.idle_weights:
        table.add_row("(not run)", "", f"{found.idle_weights:,}", "0", "0.0%")
    table.add_section()
    table.add_row("total", "", f"{found.weights:,}", f"{found.macs:,}", "", style="bold")
    return table
