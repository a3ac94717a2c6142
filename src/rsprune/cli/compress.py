"""``rsprune compress``: a whole run from a recipe, and its resumption."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rsprune.cli.progress import Display
from rsprune.engine.directory import begin, recipe_of
from rsprune.engine.recipe import Recipe, read_recipe
from rsprune.engine.run import execute
from rsprune.errors import InvalidParameterError, RsPruneError
from rsprune.report import write_report

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [--KEY VALUE]...",
        help="A TOML file, and keys of a recipe; `rsprune recipe` prints them all.",
    ),
]


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

      rsprune compress --resume runs/mine
    """
    directory = prepared(settings or [], model, data, out, resume)
    console = Console(stderr=as_json, emoji=False)
    display = Display(console)
    with interrupted(console, f"rsprune compress --resume {directory}"), display.shown():
        finish = execute(directory, display)
    html, _ = write_report(directory)
    exported = _exported(directory, console)
    if as_json:
        typer.echo(json.dumps({"directory": str(directory), **finish}, indent=2))
        return
    console.print(result_table(finish))
    console.print(_sentence(finish), highlight=False, soft_wrap=True)
    for path in (directory / "model.safetensors", exported, html):
        if path is not None:
            console.print(f"  {path}", highlight=False, soft_wrap=True)


@contextmanager
def interrupted(console: Console, command: str) -> Iterator[None]:
    """Say how to go on after Ctrl-C, and exit as shells expect."""
    try:
        yield
    except KeyboardInterrupt:
        line = f"Stopped; nothing is lost. Go on with: {command}"
        console.print(line, highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None


def prepared(
    tokens: list[str],
    model: str | None,
    data: str | None,
    out: Path | None,
    resume: Path | None,
    suffix: str = "",
) -> Path:
    """The run directory, new or found."""
    recipe, options = parse_settings(tokens)
    if resume is not None:
        if recipe or model or data or out or options:
            raise InvalidParameterError(
                "rsprune compress", "--resume", "given without other settings", str(resume),
                "A run goes on with the recipe it began with.",
            )  # fmt: skip
        recipe_of(resume)
        return resume
    given = {"model": model, "data": data}
    options |= {name: value for name, value in given.items() if value is not None}
    settings = read_recipe(recipe, options)
    directory = out or Path("runs") / f"{_slug(recipe, settings)}{suffix}"
    begin(settings, directory)
    return directory


def parse_settings(tokens: list[str]) -> tuple[Path | None, dict[str, str]]:
    """The recipe's file, if there is one, and ``--key value`` or ``--key=value`` pairs."""
    files: list[Path] = []
    options: dict[str, str] = {}
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--"):
            files.append(Path(token))
            continue
        key, equals, value = token[2:].partition("=")
        if not equals and (not rest or rest[0].startswith("--")):
            raise InvalidParameterError(
                "the command", token, "given a value, as --key value", "none",
                "`rsprune recipe` lists the keys.",
            )  # fmt: skip
        options[key] = value if equals else rest.pop(0)
    if len(files) > 1:
        raise InvalidParameterError(
            "the command", "RECIPE", "one file", " ".join(map(str, files)),
            "Keys of the recipe begin with two dashes.",
        )  # fmt: skip
    return (files[0] if files else None), options


def _slug(recipe: Path | None, settings: Recipe) -> str:
    name = recipe.stem if recipe else f"{settings.model}-{settings.data}"
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def _exported(directory: Path, console: Console) -> Path | None:
    """``model.onnx``, unless the recipe does without or the packages are not there."""
    recipe = recipe_of(directory)
    if not recipe.onnx:
        return None
    target = directory / "model.onnx"
    try:
        from rsprune.cli.export import export_run

        export_run(directory, target)
    except RsPruneError as error:
        console.print(f"model.onnx was not written: {error}", highlight=False, soft_wrap=True)
        return None
    return target


def result_table(finish: dict[str, Any]) -> Table:
    """The network before and after, with ratios."""
    table = Table(title="before and after")
    table.add_column("")
    for head in ("before", "after", ""):
        table.add_column(head, justify="right")
    before, after = finish["before"], finish["after"]
    for name, key in (("MACs", "macs"), ("weights", "weights"), ("parameters", "params")):
        ratio = before[key] / max(1, after[key])
        table.add_row(name, f"{before[key]:,}", f"{after[key]:,}", f"{ratio:.2f}x fewer")
    for name in ("validation accuracy", "test accuracy"):
        a, b = (side[name.replace(" ", "_")] for side in (before, after))
        table.add_row(name, f"{a:.2%}", f"{b:.2%}", f"{100 * (b - a):+.2f} points")
    if before["latency"] and after["latency"]:
        times = [f"{1000 * side['latency']:.2f} ms" for side in (before, after)]
        table.add_row("latency, batch 1", *times, f"{before['latency'] / after['latency']:.2f}x")
    return table


def _sentence(finish: dict[str, Any]) -> str:
    """What a manager would want to know."""
    before, after = finish["before"], finish["after"]
    lost = 100 * (before["test_accuracy"] - after["test_accuracy"])
    words = f"{lost:.2f} points lower" if lost > 0 else f"{-lost:.2f} points higher"
    return (
        f"The network computes {before['macs'] / after['macs']:.1f} times less and is "
        f"{before['params'] / after['params']:.1f} times smaller; its test accuracy is {words}."
    )
