"""``rsprune report``: the report of a run, written again."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from rsprune.report import write_report


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run directory, finished or not.")
    ],
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the paths as JSON.")] = False,
) -> None:
    """Write report.html and report.md of a run again, from its events.jsonl.

    The page is one file that loads nothing else; the Markdown is for pull requests.

    [bold]Examples[/bold]

      rsprune report runs/small_cnn-digits --open

      rsprune report runs/vgg16-cifar10 --json
    """
    html, markdown = write_report(directory)
    if as_json:
        typer.echo(json.dumps({"html": str(html), "markdown": str(markdown)}, indent=2))
    else:
        typer.echo(f"{html}\n{markdown}")
    if show and not webbrowser.open(html.resolve().as_uri()):
        typer.echo(f"rsprune: there is no browser here; open {html} yourself.", err=True)
