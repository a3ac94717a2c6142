"""Cells of a benchmark: trainings in run directories of their own, and the table of them.

A finished cell is read, one that was stopped or killed goes on, and the table can be printed at any
time. Every key of a recipe is an option of such a benchmark, as for ``rsprune compress``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from typing import Any

from rsprune.cli.progress import Display, make_console
from rsprune.cli.settings import parse_settings
from rsprune.engine.directory import begin, recipe_of
from rsprune.engine.events import Event, EventLog
from rsprune.engine.recipe import Recipe, read_recipe, recipe_keys
from rsprune.errors import InvalidParameterError, RsPruneError, RunError

Keys = dict[str, str]
BASE: Keys = {
    "model": "resnet20",
    "threads": "2",
    "channels_last": "true",
    "onnx": "false",
    "loading.normalise": "imagenet",  # which the weights in common use need
    "loading.augment": "crop-flip",
    "baseline.epochs": "0",
    "explore.batch_size": "128",
    "explore.orthant_epochs": "0",
    "compress.target_macs": "0.5",
    "recursion.tolerance": "1",  # whatever exploring costs, there is a cut to compare
    "finetune.batch_size": "128",
    "finetune.distill": "0.5",
}


@dataclass(frozen=True)
class Cell:
    """One training: its place in the table, its recipe and its directory."""

    name: str
    recipe: Recipe
    directory: Path

    @property
    def log(self) -> EventLog:
        """What happened so far; empty for a cell that was not begun."""
        return EventLog(self.directory / "events.jsonl")

    @property
    def finish(self) -> Event | None:
        """The figures of a finished cell."""
        return self.log.find("finish")

    @property
    def begun(self) -> bool:
        """Whether there is a directory to go on with."""
        return (self.directory / "recipe.toml").exists()

    def check(self) -> None:
        """Refuse a directory that was begun with other settings."""
        if not self.begun:
            return
        old, new = (_values(recipe) for recipe in (recipe_of(self.directory), self.recipe))
        other = [
            f"{key} was {old[key]!r} and is {new[key]!r}" for key in new if old[key] != new[key]
        ]
        if other:
            raise RunError(
                f"'{self.directory}' holds a cell with other settings: {'; '.join(other)}. Repeat "
                "them, or choose another directory with --out."
            )


def _values(recipe: Recipe) -> dict[str, Any]:
    return {key: reduce(getattr, key.split("."), recipe) for key, _ in recipe_keys()}


def make_parser(doc: str | None, out: str, images: int) -> argparse.ArgumentParser:
    """The options that both benchmarks have."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--images", type=int, default=images, help=f"of CIFAR-10's training images ({images})")
    add("--seeds", type=int, default=1, help="how many; the first is 0 (1)")
    add("--only", nargs="+", metavar="NAME", default=["*"], help="cells, e.g. base 'select*'")
    add("--out", type=Path, default=Path(out), help=f"the directory of the cells ({out})")
    add("--table", action="store_true", help="print what is finished; train nothing")
    return parser


def base_recipe(options: argparse.Namespace, rest: list[str], more: Keys) -> Recipe:
    """The recipe that all cells start from.

    Args:
        options: those of the benchmark.
        rest: what is left of the command line: keys of a recipe.
        more: what this benchmark adds to ``BASE``.
    """
    file, given = parse_settings(rest)
    if file is not None or not given.get("weights"):
        raise InvalidParameterError(
            "the benchmark", "weights", "a file of trained weights, after --weights",
            None if file is None else str(file), "Every cell starts from them.",
        )  # fmt: skip
    keys = {**BASE, "data": f"benchmarks.subset:cifar10_{options.images}", **more, **given}
    keys["weights"] = str(Path(str(keys["weights"])).expanduser().absolute())
    if "explore.prox_epochs" not in keys:
        keys["explore.prox_epochs"] = str(read_recipe(None, keys).explore.epochs / 2)
    return read_recipe(None, keys)


def changed(recipe: Recipe, keys: Mapping[str, object]) -> Recipe:
    """The recipe with other values for some keys."""
    values = recipe.model_dump()
    for key, value in keys.items():
        *sections, name = key.split(".")
        reduce(lambda inner, section: inner[section], sections, values)[name] = value
    return Recipe.model_validate(values)


def chosen(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The names that match a pattern."""
    known = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise InvalidParameterError("the benchmark", "only", f"of {', '.join(known)}", pattern)
    return [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]


def work_off(cells: Sequence[Cell], work: Callable[[Cell, Display], object]) -> None:
    """Do what is left of every cell."""
    console = make_console()
    for cell in cells:
        if not cell.begun:
            begin(cell.recipe, cell.directory)
        if cell.finish is None:
            console.print(f"\n{cell.directory}", soft_wrap=True)
            display = Display(console)
            with display.shown():
                work(cell, display)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], cells: Sequence[Cell]) -> None:
    """A table in Markdown, and what the cells started from."""
    print(f"\n| {' | '.join(heads)} |")
    print(f"|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    finish = next((found for found in (cell.finish for cell in cells) if found is not None), None)
    if finish is not None:
        before = finish["before"]
        print(
            f"\nThe given network: {before['macs']:,} MACs, validation accuracy "
            f"{before['validation_accuracy']:.2%}, test accuracy {before['test_accuracy']:.2%}."
        )


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)


def ratio(finishes: Sequence[Event]) -> str:
    """How many times fewer multiply-accumulates there are."""
    return f"{mean([f['before']['macs'] / f['after']['macs'] for f in finishes]):.2f}x"


def percent(finishes: Sequence[Event], name: str) -> str:
    """The mean of an accuracy."""
    return f"{mean([f['after'][name] for f in finishes]):.2%}"


def minutes(finishes: Sequence[Event]) -> str:
    """The mean time of training: its epochs, without the evaluation after each."""
    return f"{mean([f['seconds'] for f in finishes]) / 60:.1f}"


@contextmanager
def ending() -> Iterator[None]:
    """End as a command does: a stop and a mistake are told in a sentence."""
    try:
        yield
    except KeyboardInterrupt:
        print("Stopped; nothing is lost. The same command goes on.")
        sys.exit(130)
    except RsPruneError as error:
        sys.exit(str(error))
