"""``rsprune compare``: what several runs came to, and in which settings they differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from rsprune.cli.progress import make_console
from rsprune.errors import RecipeError
from rsprune.report import numbers
from rsprune.report.read import read_run
from rsprune.report.run import Run
from rsprune.report.tables import measures


def compare(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run directories, finished or not.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show runs side by side: accuracy, costs, time, and the settings in which they differ.

    Nothing is measured again; published runs will do as well.

    [bold]Examples[/bold]

      rsprune compare runs/one runs/two

      rsprune compare results/* --json
    """
    if len(directories) < 2:
        raise RecipeError(["DIR: name at least two runs: rsprune compare runs/one runs/two"])
    runs = [read_run(directory) for directory in directories]
    settings = _differences([dict(_flat(run.start.recipe)) for run in runs])
    if as_json:
        found = [
            {
                "run": str(directory),
                **_facts(run),
                "settings": {k: v[i] for k, v in settings.items()},
            }
            for i, (directory, run) in enumerate(zip(directories, runs, strict=True))
        ]
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table()
    table.add_column("")
    for directory in directories:
        table.add_column(str(directory), justify="right", overflow="fold")
    shown = [_shown(run) for run in runs]
    for name in dict.fromkeys(name for own in shown for name in own):
        table.add_row(name, *(own.get(name, numbers.ABSENT) for own in shown))
    table.add_section()
    for key, values in settings.items():
        table.add_row(key, *(numbers.ABSENT if value is None else str(value) for value in values))
    make_console().print(table)


def _shown(run: Run) -> dict[str, str]:
    """What a run came to, in words."""
    found = {
        one.name: f"{one.show(one.after)}, {one.change}"
        for one in measures(run)
        if one.after is not None
    }
    zeros, seconds = _zeros(run), run.finish.seconds if run.finish else None
    found["zeros before the last cut"] = numbers.percent(zeros)
    found["training"] = numbers.seconds(seconds) if run.finish else "not finished"
    return found


def _facts(run: Run) -> dict[str, Any]:
    """The same, for programs."""
    return {
        "finished": run.finish is not None,
        "measures": {one.name: {"before": one.before, "after": one.after} for one in measures(run)},
        "zeros": _zeros(run),
        "seconds": run.finish.seconds if run.finish else None,
    }


def _zeros(run: Run) -> float | None:
    return run.rounds[-1].sparsity if run.rounds else None


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of a recipe with those of its tables."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _differences(recipes: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The keys whose values are not the same in all recipes, with these values."""
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    found = {key: [recipe.get(key) for recipe in recipes] for key in keys}
    return {key: values for key, values in found.items() if any(v != values[0] for v in values)}
