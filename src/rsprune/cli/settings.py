"""What commands that make runs share: their settings, their directory, and how they end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rsprune.engine.directory import begin, rank, recipe_of
from rsprune.engine.recipe import SEARCH, Recipe, read_recipe
from rsprune.errors import RecipeError, RsPruneError, RunError, StorageError

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE|--KEY VALUE",
        help="A TOML file, and keys of a recipe; `rsprune recipe` prints them all.",
    ),
]
Subject = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DIR|FILE|--KEY VALUE",
        help="A run directory or a file of weights, and keys of a recipe.",
    ),
]
Options = dict[str, str | None]
_OTHERS = ("out", "resume", "json", "powers", "tolerance", "storage")  # that are no keys


@contextmanager
def run_directory(
    command: str,
    tokens: list[str],
    given: dict[str, str | None],
    out: Path | None,
    resume: Path | None,
    console: Console,
) -> Iterator[Path]:
    """The directory of a run, new or found; after Ctrl-C or a full disk, how to go on.

    Args:
        command: ``compress`` or ``search-lambda``.
        tokens: what typer did not understand.
        given: keys of the recipe that it did.
        out: where a new run goes.
        resume: the directory of an old one.
        console: where Ctrl-C is answered.
    """
    file, options = parse_settings(tokens)
    options |= {name: value for name, value in given.items() if value is not None}
    if resume is None:
        directory = _new(command, file, options, out)
    else:
        directory = _old(command, resume, [*([str(file)] if file else []), *options, *_named(out)])
    again = f"rsprune {command} --resume {directory}"
    try:
        yield directory
    except KeyboardInterrupt:
        line = f"Stopped; nothing is lost. Go on with: {again}"
        console.print(line, soft_wrap=True)
        raise typer.Exit(130) from None
    except StorageError as error:
        raise StorageError(f"{error} Go on with: {again}") from error
    except RsPruneError:
        if resume is None and not rank():
            _forget(directory)
        raise


def parse_settings(tokens: list[str]) -> tuple[Path | None, Options]:
    """The file, if there is one, and ``--key value`` or ``--key=value`` pairs."""
    files: list[str] = []
    options: Options = {}
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        if not token.startswith("-"):
            files.append(token)
            continue
        if not token.startswith("--"):
            raise RecipeError([f"{token}: options begin with two dashes, as -{token}."])
        key, equals, value = token[2:].partition("=")
        missing = not equals and (not rest or rest[0].startswith("--"))
        options[key] = None if missing else value if equals else rest.pop(0)
    if len(files) > 1:
        listed = " and ".join(map(repr, files))
        raise RecipeError(
            [f"{listed}: one file is enough. Keys begin with two dashes; lists have commas."]
        )
    return (Path(files[0]) if files else None), options


def recipe_and_file(target: Path, options: Options, others: Sequence[str]) -> tuple[Recipe, Path]:
    """The recipe of a finished run, or of a file of weights, and the file.

    Args:
        target: the run's directory, or the file.
        options: keys of the recipe.
        others: further options of the command, which an unknown one may be a slip for.
    """
    if not target.exists():
        raise RunError(f"There is no '{target}', neither a run directory nor a file.")
    if not target.is_dir():
        if "model" not in options:
            raise RecipeError(
                ["--model: a file holds weights, not code; name the model, e.g. --model vgg16."]
            )
        return read_recipe(None, options, others), target
    if "model" in options:
        raise RecipeError(["--model: the run's recipe names its model; leave it out."])
    recipe_of(target)  # which refuses what is no run
    file = target / "model.safetensors"
    if not file.exists():
        raise RunError(
            f"'{target}' has no model.safetensors: the run is not finished. Go on with it: "
            f"rsprune compress --resume {target}"
        )
    return read_recipe(target / "recipe.toml", options, others), file


def _new(command: str, file: Path | None, options: Options, out: Path | None) -> Path:
    recipe = read_recipe(file, options, _OTHERS)
    suffix = "-lambda" if command == "search-lambda" else ""
    directory = out or Path("runs") / f"{_slug(file, recipe)}{suffix}"
    begin(recipe, directory)
    return directory


def _old(command: str, directory: Path, others: list[str]) -> Path:
    if others:
        raise RecipeError(
            [
                f"--resume {directory}: goes on with the recipe that is there, so leave out: "
                f"{', '.join(others)}."
            ]
        )
    recipe_of(directory)
    if command == "compress" and (directory / SEARCH).exists():
        raise RunError(
            f"'{directory}' holds a search. Go on with it: rsprune search-lambda --resume "
            f"{directory}"
        )
    return directory


def _named(out: Path | None) -> list[str]:
    return [] if out is None else ["out"]


def _slug(file: Path | None, recipe: Recipe) -> str:
    name = file.stem if file else f"{recipe.model}-{recipe.data}"
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def _forget(directory: Path) -> None:
    """Undo the beginning of a run that could not start, so that the command can be mended."""
    state = directory / "state"
    if (directory / "events.jsonl").exists() or any(state.glob("*")):
        return
    for made in (directory / "checkpoints", state):
        if made.exists():
            made.rmdir()
    names = ("recipe.toml", "study.db", SEARCH)
    for path in (*directory.glob(".lock-*"), *(directory / name for name in names)):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # something else is in it
        directory.rmdir()
