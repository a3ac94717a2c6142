"""``rsprune report``: the report of a run, written again, or with its model to publish."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from rsprune.errors import RecipeError
from rsprune.report import publish, write_report


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run directory, finished or not.")
    ],
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Publish a finished run here, with its model."),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths as JSON.")] = False,
) -> None:
    """Write report.html and report.md of a run again, from its events.jsonl.

    The page is one file that loads nothing else; the Markdown is for pull requests.

    With --to, a finished run is published instead: its model, recipe, history,
    events, report.md and pictures (by rsprune\\[pictures]) in a directory small
    enough for git, without paths of this machine; `rsprune evaluate` measures it.

    [bold]Examples[/bold]

      rsprune report runs/small_cnn-digits --open

      rsprune report runs/vgg16-cifar10 --json

      rsprune report runs/vgg16-cifar10 --to results/vgg16-cifar10
    """
    if to is not None:
        _publish(directory, to, show, as_json)
        return
    html, markdown = write_report(directory)
    if as_json:
        typer.echo(json.dumps({"html": str(html), "markdown": str(markdown)}, indent=2))
    else:
        typer.echo(f"{html}\n{markdown}")
    if show and not webbrowser.open(html.resolve().as_uri()):
        typer.echo(f"rsprune: there is no browser here; open {html} yourself.", err=True)


def _publish(directory: Path, to: Path, show: bool, as_json: bool) -> None:
    if show:
        raise RecipeError(["--open: a published run has no page; leave out --open or --to."])
    files = publish(directory, to)
    if as_json:
        typer.echo(json.dumps({"directory": str(to), "files": [p.name for p in files]}, indent=2))
    else:
        typer.echo("\n".join(map(str, files)))
