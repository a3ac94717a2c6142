"""``rsprune search-lambda``: which penalty to start from."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from rsprune.cli.progress import Display, make_console
from rsprune.cli.settings import Settings, run_directory
from rsprune.engine.search import POWERS, TOLERANCE, Search, search_lambda
from rsprune.errors import InvalidParameterError

_DEFAULT = ",".join(f"{power:g}" for power in POWERS)


def search(
    settings: Settings = None,
    model: Annotated[str | None, typer.Option(help="As for rsprune compress.")] = None,
    data: Annotated[str | None, typer.Option(help="As for rsprune compress.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The directory of the search; default runs/NAME-lambda.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with the search in this directory.")
    ] = None,
    powers: Annotated[
        str | None, typer.Option(help=f"The penalties to try, with commas; default {_DEFAULT}.")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help=f"Validation accuracy that may be lost; default {TOLERANCE}."
        ),
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="An optuna data base; default DIR/study.db (SQLite).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Find the largest lambda that keeps the accuracy, by short sparse trainings.

    Each lambda is tried for explore.epochs epochs on the same baseline; hopeless ones are given
    up half-way.

    [bold]Examples[/bold]

      rsprune search-lambda --model small_cnn --data digits --explore.epochs 10

      rsprune search-lambda recipes/digits.toml --powers 1e-2,3e-3,1e-3 --tolerance 0.005

      rsprune search-lambda --resume runs/small_cnn-digits-lambda
    """
    wanted = None if powers is None else _numbers(powers)
    console = make_console(stderr=as_json)
    display = Display(console)
    keys = {"model": model, "data": data}
    with (
        run_directory("search-lambda", settings or [], keys, out, resume, console) as directory,
        display.shown(),
    ):
        found = search_lambda(
            directory, display, powers=wanted, tolerance=tolerance, storage=storage
        )
    if as_json:
        typer.echo(json.dumps({**asdict(found), "choice": found.choice}, indent=2))
        return
    console.print(_table(found))
    console.print(_advice(found), soft_wrap=True)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < number < 1e9 for number in found):
        raise InvalidParameterError(
            "rsprune search-lambda", "--powers", "positive numbers with commas between", text,
            "E.g. --powers 1e-2,1e-3,1e-4.",
        )  # fmt: skip
    return found


def _table(found: Search) -> Table:
    table = Table(title=f"baseline: validation accuracy {found.baseline:.2%}")
    for head in ("lambda", "validation", "zeros", "MACs left", "epochs", ""):
        table.add_column(head, justify="right")
    for one in found.tried:
        mark = "chosen" if one.lam == found.choice else one.remark
        table.add_row(
            f"{one.lam:g}",
            "" if one.accuracy is None else f"{one.accuracy:.2%}",
            "" if one.sparsity is None else f"{one.sparsity:.1%}",
            "" if one.macs is None else f"{one.macs:.1%}",
            str(one.epochs),
            mark,
        )
    return table


def _advice(found: Search) -> str:
    if found.choice is None:
        return (
            f"None kept a validation accuracy of {found.wanted:.2%}. Try smaller ones with "
            "--powers, more epochs with --explore.epochs, or a larger --tolerance."
        )
    return f"Use --explore.lam {found.choice:g}, the largest that keeps {found.wanted:.2%}."
