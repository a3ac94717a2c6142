"""``rsprune compress``: a whole run from a recipe, and its resumption."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rsprune.cli.before_after import add_accuracy, add_costs
from rsprune.cli.latency import latency_of_run
from rsprune.cli.progress import Display, make_console
from rsprune.cli.settings import Settings, run_directory
from rsprune.engine.directory import rank, recipe_of
from rsprune.engine.run import execute
from rsprune.errors import RsPruneError
from rsprune.metrics.comparison import LatencyRow
from rsprune.report import write_report

_NOISE = 0.05  # a speed-up nearer to 1 is none
_ACCURACIES = {
    "validation accuracy": "validation_accuracy",
    "validation accuracy, top-5": "validation_top5",
    "test accuracy": "test_accuracy",
    "test accuracy, top-5": "test_top5",
}


def compress(
    settings: Settings = None,
    model: Annotated[
        str | None,
        typer.Option(help="vgg16, ..., torchvision:NAME, timm:NAME, package.module:factory."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="digits, fashion-mnist, cifar10, imagefolder:DIR, ...")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run directory; default runs/MODEL-DATA.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with the run in this directory.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON; progress goes to stderr.")
    ] = False,
) -> None:
    """Compress a network: train it sparse, cut it to its sparsity, fine-tune it, report.

    Every key of a recipe is an option too, e.g. --explore.lam 1e-3 --finetune.epochs 20;
    `rsprune recipe` lists them with their defaults. A stopped or killed run goes on with --resume.

    [bold]Examples[/bold]

      rsprune compress

      rsprune compress recipes/digits.toml --out runs/mine --seed 1

      rsprune compress --model resnet20 --data cifar10 --compress.target_macs 0.5

      rsprune compress recipes/resnet20-cifar10.toml --weights resnet20.th

      rsprune compress --resume runs/mine
    """
    for package in ("jinja2", "plotly"):  # of the report: missed now, and not after a week
        import_module(package)
    console = make_console(stderr=as_json)
    display = Display(console)
    keys = {"model": model, "data": data}
    with (
        run_directory("compress", settings or [], keys, out, resume, console) as directory,
        display.shown(),
    ):
        finish = execute(directory, display)
    if rank():
        return  # the first of several processes tells
    rows = latency_of_run(directory, console)
    if not as_json:
        console.print(result_table(finish, rows))
        console.print(sentence(finish, rows), soft_wrap=True)
    html, _ = write_report(directory)
    exported = _exported(directory, console)
    if as_json:
        facts = {"directory": str(directory), **finish, "latency": [asdict(row) for row in rows]}
        typer.echo(json.dumps(facts, indent=2))
        return
    for path in (directory / "model.safetensors", exported, html):
        if path is not None:
            console.print(f"  {path}", soft_wrap=True)


def _exported(directory: Path, console: Console) -> Path | None:
    """``model.onnx``, unless the recipe does without or the packages are not there."""
    recipe = recipe_of(directory)
    if not recipe.onnx:
        return None
    target = directory / "model.onnx"
    try:
        from rsprune.cli.exportable import of_run

        of_run(directory, {}).export(target, "onnx", force=True)
    except RsPruneError as error:
        console.print(f"model.onnx was not written: {error}", soft_wrap=True)
        return None
    return target


def result_table(finish: dict[str, Any], rows: Sequence[LatencyRow]) -> Table:
    """The network before and after, with ratios."""
    table = Table(title="before and after")
    table.add_column("")
    for head in ("before", "after", ""):
        table.add_column(head, justify="right")
    before, after = finish["before"], finish["after"]
    add_costs(table, before, after)
    for name, key in _ACCURACIES.items():
        if key in after:
            add_accuracy(table, name, before[key], after[key])
    for row in rows:
        times = [f"{1000 * side.median:.3g} ms" for side in (row.original, row.compressed)]
        table.add_row(f"{row.runtime}, batch {row.batch}", *times, f"{row.speedup:.2f}x")
    return table


def sentence(finish: dict[str, Any], rows: Sequence[LatencyRow]) -> str:
    """What a manager would want to know.

    Args:
        finish: the last event of the run.
        rows: the latencies; the runtime that is fastest in the end counts.
    """
    before, after = finish["before"], finish["after"]
    lost = round(100 * (before["test_accuracy"] - after["test_accuracy"]), 1)
    words = "lost" if lost > 0 else "gained"
    points = f"{abs(lost):.1f} points of test accuracy {words}" if lost else "no test accuracy lost"
    with_points = f"{'at' if lost > 0 else 'with'} {points} ({after['test_accuracy']:.1%})"
    if after["params"] == before["params"]:
        return f"The network is not smaller than before, {with_points}."
    size = f"is now {before['params'] / after['params']:.1f} times smaller"
    best = min(rows, key=lambda row: row.compressed.median)
    where = f"on this machine's processor ({best.runtime})"
    return f"The network {size} and {_speed(best.speedup)} {where}, {with_points}."


def _speed(ratio: float) -> str:
    if ratio >= 1 + _NOISE:
        return f"answers {ratio:.1f} times faster"
    if ratio <= 1 - _NOISE:
        return f"takes {1 / ratio:.1f} times as long to answer"
    return "answers as fast as before"
