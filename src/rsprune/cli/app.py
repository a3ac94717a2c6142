"""The commands, and how their errors are shown: one line, no traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import rsprune
from rsprune.cli.profile import profile
from rsprune.errors import InvalidParameterError

BAD_INPUT, FAILED = 2, 1

app = typer.Typer(name="rsprune", rich_markup_mode="rich", add_completion=False)
app.command()(profile)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(rsprune.__version__)
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Compress convolutional networks by sparse optimization."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run the command line with ``arguments`` and return its exit code."""
    if os.getcwd() not in sys.path:  # for package.module:factory, as python -m does
        sys.path.insert(0, os.getcwd())
    try:
        return app(list(arguments), prog_name="rsprune", standalone_mode=False) or 0
    except Exception as error:
        typer.echo(f"rsprune: {_one_line(error)}", err=True)
        return _exit_code(error)


def _one_line(error: Exception) -> str:
    # Usage errors name the option at fault only in their formatted message.
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return " ".join(message.split()) or type(error).__name__


def _exit_code(error: Exception) -> int:
    if isinstance(error, InvalidParameterError):
        return BAD_INPUT
    return int(getattr(error, "exit_code", FAILED))
