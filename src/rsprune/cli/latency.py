"""``rsprune latency``: how much faster a compressed network is than its original."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from torch import Tensor, nn

import rsprune
from rsprune.checks import check_choice
from rsprune.cli.full import full_network
from rsprune.cli.progress import make_console
from rsprune.cli.settings import Options, Subject, parse_settings, recipe_and_file
from rsprune.cli.sizes import typed_sizes
from rsprune.engine.directory import is_published, recipe_of
from rsprune.errors import FileFormatError, InvalidParameterError, RecipeError
from rsprune.metrics.comparison import (
    BATCHES,
    LatencyComparison,
    LatencyRow,
    Progress,
    compare_latency,
    read_comparison,
)
from rsprune.metrics.latency import Latency
from rsprune.ratios import compared
from rsprune.report.read import LATENCY
from rsprune.runtimes.ready import RUNTIMES

_OWNER = "rsprune latency"
_OTHERS = ("input", "runtime", "batch", "threads", "runs", "json")  # that are no keys
_SHORT = 1.0  # seconds for a row at the end of a run


def latency(
    settings: Subject = None,
    model: Annotated[str | None, typer.Option(help="The model of a file.")] = None,
    input: Annotated[
        str, typer.Option(metavar="SIZES", help="One input of a file's model, e.g. 3x32x32.")
    ] = "",
    runtime: Annotated[
        list[str] | None,
        typer.Option(help="torch, compile, onnxruntime; default: those that work here."),
    ] = None,
    batch: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZES", help="Inputs in a batch; default: 1,8,64."),
    ] = None,
    threads: Annotated[
        list[str] | None,
        typer.Option(metavar="COUNTS", help="E.g. 1,2; default: 1, and as many as torch uses."),
    ] = None,
    runs: Annotated[
        int, typer.Option(min=2, help="Runs of each model for a row; fewer where they are slow.")
    ] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure how much faster a compressed network is than its original.

    Both take turns, in every runtime, batch size and number of threads. The
    speed-up is that of the medians (± is half the distance of the quartiles);
    the efficiency is the speed-up divided by the ratio of the MACs. Weights
    do not matter for speed: the original has random ones. A run directory
    keeps the figures in latency.json, for its report; a published one stays.

    [bold]Examples[/bold]

      rsprune latency runs/small_cnn-digits

      rsprune latency results/resnet20-cifar10 --runtime torch,onnxruntime

      rsprune latency runs/mine --runtime onnxruntime --batch 1 --threads 1,2

      rsprune latency slim.safetensors --model vgg16 --json
    """
    target, options = parse_settings(settings or [])
    options |= {} if model is None else {"model": model}
    if target is None:
        raise RecipeError(["Name a run directory or a file of weights: rsprune latency DIR"])
    wanted = _names(runtime or [])
    batches = _counts("--batch", batch) if batch else BATCHES
    counts = _counts("--threads", threads) if threads else None
    full, slim, example = subject(target, options, input)
    console = make_console(stderr=as_json)
    with _shown(console) as progress:
        found = compare_latency(
            full, slim, example, runtimes=wanted or RUNTIMES, strict=bool(wanted),
            batches=batches, threads=counts, runs=runs, on_progress=progress,
        )  # fmt: skip
    if as_json:
        facts = {"target": str(target), "input": list(example.shape[1:]), **asdict(found)}
        typer.echo(json.dumps(facts, indent=2))
    else:
        console.print(_table(f"{target}, {typed_sizes(example.shape[1:])}", found))
    for name, reason in found.left_out.items():
        console.print(f"{name} was left out: {reason}", soft_wrap=True)
    if target.is_dir() and is_published(target):
        console.print("  latency.json stays as it was published", soft_wrap=True)
    elif target.is_dir():
        path = target / LATENCY
        with suppress(FileFormatError):  # what is damaged is replaced
            found = found.with_rows_of(read_comparison(path)) if path.exists() else found
        found.write(path)
        console.print(f"  {target / LATENCY}; rsprune report {target} shows it", soft_wrap=True)


def latency_of_run(directory: Path, console: Console) -> list[LatencyRow]:
    """The smallest batch with most threads in ``latency.json`` of a finished run.

    Without that file, a short measurement makes it: one input with the run's number of threads, in
    torch and, if the run exports its model, in onnxruntime; or where its target of latency is.
    """
    path = directory / LATENCY
    if path.exists():
        found = read_comparison(path)
    else:
        recipe = recipe_of(directory)
        full, slim, example = subject(directory, {})
        runtimes = ["torch", *(["onnxruntime"] if recipe.onnx else [])]
        batch, threads = 1, recipe.threads or torch.get_num_threads()
        if recipe.compress.target_latency is not None:
            place = recipe.compress
            runtimes.append(place.runtime)
            batch, threads = place.batch, place.threads or threads
        with _shown(console) as progress:
            found = compare_latency(
                full, slim, example, runtimes=runtimes, batches=(batch,), threads=(threads,),
                seconds=_SHORT, on_progress=progress,
            )  # fmt: skip
        found.write(path)
    return found.first_rows


def subject(target: Path, options: Options, sizes: str = "") -> tuple[nn.Module, nn.Module, Tensor]:
    """The original with random weights, the compressed network, and one input.

    Args:
        target: a run directory or a file of weights.
        options: keys of a recipe, the model of a file among them.
        sizes: one input of a file's model, if it is not the usual one.
    """
    recipe, file = recipe_and_file(target, options, _OTHERS)
    full, example = full_network(_OWNER, target, recipe, sizes, batch=1)
    return full, rsprune.load(full, file), example


def _names(given: list[str]) -> tuple[str, ...]:
    """The runtimes, with commas or one by one."""
    names = tuple(name.strip() for text in given for name in text.split(","))
    for name in names:
        check_choice(_OWNER, "--runtime", name, RUNTIMES)
    return names


def _counts(option: str, given: list[str]) -> tuple[int, ...]:
    """Numbers, with commas or one by one."""
    text = ",".join(given)
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise InvalidParameterError(
            _OWNER, option, "whole numbers of at least 1, with commas between them", text,
            f"For example {option} 1,8.",
        )  # fmt: skip
    return tuple(map(int, parts))


@contextmanager
def _shown(console: Console) -> Iterator[Progress]:
    """A bar on a terminal; elsewhere nothing. It moves between rows alone, not to disturb them."""
    bar = Bar(
        TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
        console=console, disable=not console.is_terminal, transient=True, auto_refresh=False,
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, what: bar.update(
            task, completed=done, total=total, description=what, refresh=True
        )


def _table(title: str, found: LatencyComparison) -> Table:
    table = Table(
        title=f"{title}: {compared(found.macs, 1, 'fewer MACs')}", caption=found.machine["cpu"],
        box=SIMPLE_HEAD, padding=0, collapse_padding=True,
    )  # fmt: skip
    table.add_column("runtime")
    heads = ("batch", "threads", "original", "compressed", "speed-up", "efficiency", "memory")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=head not in ("original", "compressed"))
    last = ""
    for row in found.rows:
        if last and row.runtime != last:
            table.add_section()
        sides = (row.original, row.compressed)
        table.add_row(
            row.runtime if row.runtime != last else "", str(row.batch), str(row.threads),
            *map(_time, sides), f"{row.speedup:.2f}x", f"{row.efficiency:.2f}", _memory(sides),
        )  # fmt: skip
        last = row.runtime
    return table


def _time(side: Latency) -> str:
    spread = (side.high - side.low) / 2 / side.median
    return f"{1e3 * side.median:.3g} ms ±{spread:.0%}"


def _memory(sides: tuple[Latency, ...]) -> str:
    sizes: list[Any] = [side.memory for side in sides]
    if None in sizes:
        return ""
    return " to ".join(f"{size / 2**20:.1f}" for size in sizes) + " MB"
