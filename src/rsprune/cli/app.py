"""The commands, and how their errors are shown: no traceback, a line for each mistake.

Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

import rsprune
from rsprune.errors import InvalidParameterError, RecipeError, RsPruneError, RsPruneWarning

BAD_INPUT, FAILED, STOPPED = 2, 1, 130

# Where a command is, and what it does. Only the one that is asked for is imported: some bring
# libraries that take seconds, or are not installed.
_COMMANDS = {
    "compress": ("compress:compress", "Compress a network: sparse training, cut, fine-tuning."),
    "recipe": ("recipe:recipe", "Print a recipe with every key, its default and its meaning."),
    "search-lambda": ("search:search", "Find the largest lambda that keeps the accuracy."),
    "evaluate": ("evaluate:evaluate", "Measure the accuracy and costs of a compressed network."),
    "latency": ("latency:latency", "Measure how much faster a compressed network is."),
    "profile": ("profile:profile", "Count the weights and multiply-accumulates of a model."),
    "compare": ("compare:compare", "Show what several runs came to, side by side."),
    "report": ("report:report", "Write the report of a run again, or publish it with its model."),
    "export": ("export:export", "Export a compressed model: ONNX, pt2, safetensors, int8."),
    "data": ("data:data", "Fetch a data set, and say what is in it."),
    "doctor": ("doctor:doctor", "Look at versions, devices, directories, data and tools."),
}
# Keys of the recipe are options of these; typer hands over those it does not know.
_OPEN = ("compress", "search-lambda", "evaluate", "latency", "export")


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

    Start with `rsprune compress`, which compresses a small network in half a minute.
    Exit codes: 0 done, 1 failed, 2 bad input, 130 stopped by Ctrl-C.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def make_app(arguments: Sequence[str]) -> typer.Typer:
    """The application, in which the command that is asked for works and others have a name."""
    app = typer.Typer(name="rsprune", rich_markup_mode="rich", add_completion=False)
    app.callback(invoke_without_command=True)(_root)
    asked = next((word for word in arguments if not word.startswith("-")), None)
    for name, (place, summary) in _COMMANDS.items():
        module, _, function = place.partition(":")
        settings = {"ignore_unknown_options": name in _OPEN}
        if name == asked:
            command = getattr(import_module(f"rsprune.cli.{module}"), function)
            app.command(name, context_settings=settings)(command)
        else:
            app.command(name, help=summary)(lambda: None)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run the command line with ``arguments`` and return its exit code."""
    if "" not in sys.path:  # for package.module:factory, as python -m does
        sys.path.insert(0, "")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of libraries are not for the user
            warnings.simplefilter("always", RsPruneWarning)
            warnings.showwarning = _show_warning
            app = make_app(arguments)
            return app(list(arguments), prog_name="rsprune", standalone_mode=False) or 0
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("rsprune: stopped", err=True)
        return STOPPED
    except RecipeError as error:
        for problem in error.problems:
            typer.echo(f"rsprune: {_one_line(problem)}", err=True)
        return BAD_INPUT
    except ModuleNotFoundError:
        raise
    except Exception as error:
        typer.echo(f"rsprune: {_one_line(_message(error))}", err=True)
        return _exit_code(error)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    typer.echo(f"rsprune: warning: {_one_line(str(message))}", err=True)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _message(error: Exception) -> str:
    # Usage errors name the option at fault only in their formatted message.
    if hasattr(error, "format_message"):
        return str(error.format_message())
    # Errors that nobody foresaw mean little without their type.
    return str(error) if isinstance(error, RsPruneError) else f"{type(error).__name__}: {error}"


def _exit_code(error: Exception) -> int:
    if isinstance(error, InvalidParameterError):
        return BAD_INPUT
    return int(getattr(error, "exit_code", FAILED))
