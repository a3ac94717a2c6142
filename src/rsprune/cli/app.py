"""The commands, and how their errors are shown: no traceback, a line for each mistake.

Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

import rsprune
from rsprune.errors import InvalidParameterError, RecipeError, RsPruneWarning

BAD_INPUT, FAILED, STOPPED = 2, 1, 130

# Keys of the recipe are options of some commands; typer hands over those it does not know.
_OPEN = {"ignore_unknown_options": True}
# Where a command is, imported when it is asked for: some bring libraries that take seconds.
_COMMANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "compress": ("rsprune.cli.compress:compress", {"context_settings": _OPEN}),
    "recipe": ("rsprune.cli.recipe:recipe", {}),
    "search-lambda": ("rsprune.cli.search:search", {"context_settings": _OPEN}),
    "evaluate": ("rsprune.cli.evaluate:evaluate", {}),
    "profile": ("rsprune.cli.profile:profile", {}),
    "report": ("rsprune.cli.report:report", {}),
    "export": ("rsprune.cli.export:export", {}),
    "data": ("rsprune.cli.data:data", {}),
    "doctor": ("rsprune.cli.doctor:doctor", {}),
}


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(rsprune.__version__)
        raise typer.Exit


def _root(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Compress convolutional networks by sparse optimization.

    Start with `rsprune compress`, which compresses a small network in a minute.
    Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by Ctrl-C.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def make_app(arguments: Sequence[str]) -> typer.Typer:
    """The application, with the command that is asked for, or with all of them."""
    app = typer.Typer(name="rsprune", rich_markup_mode="rich", add_completion=False)
    app.callback(invoke_without_command=True)(_root)
    asked = [name for name in _COMMANDS if name in arguments[:1]]
    for name in asked or _COMMANDS:
        place, settings = _COMMANDS[name]
        module, _, function = place.partition(":")
        app.command(name, **settings)(getattr(import_module(module), function))
    return app


def run(arguments: Sequence[str]) -> int:
    """Run the command line with ``arguments`` and return its exit code."""
    if os.getcwd() not in sys.path:  # for package.module:factory, as python -m does
        sys.path.insert(0, os.getcwd())
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app = make_app(arguments)
            return app(list(arguments), prog_name="rsprune", standalone_mode=False) or 0
    except KeyboardInterrupt:
        typer.echo("rsprune: stopped", err=True)
        return STOPPED
    except RecipeError as error:
        for problem in error.problems:
            typer.echo(f"rsprune: {problem}", err=True)
        return BAD_INPUT
    except ModuleNotFoundError:
        raise
    except Exception as error:
        typer.echo(f"rsprune: {_one_line(error)}", err=True)
        return _exit_code(error)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Warnings of rsprune as lines; those of libraries are not for the user."""
    if issubclass(category, RsPruneWarning):
        typer.echo(f"rsprune: warning: {' '.join(str(message).split())}", err=True)


def _one_line(error: Exception) -> str:
    # Usage errors name the option at fault only in their formatted message.
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return " ".join(message.split()) or type(error).__name__


def _exit_code(error: Exception) -> int:
    if isinstance(error, InvalidParameterError):
        return BAD_INPUT
    return int(getattr(error, "exit_code", FAILED))
