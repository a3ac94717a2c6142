"""Cells of a benchmark: trainings in run directories of their own, and the table of them.

A finished cell is read, one that was stopped or killed goes on, and the table can be printed at any
time. Every key of a recipe is an option of such a benchmark, as for ``rsprune compress``.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rsprune.cli.progress import Display, make_console
from rsprune.cli.settings import parse_settings
from rsprune.engine.directory import begin, recipe_of, resolved
from rsprune.engine.events import Event, EventLog
from rsprune.engine.mistakes import problem
from rsprune.engine.recipe import Recipe, read_recipe, recipe_keys
from rsprune.errors import (
    DivergenceError,
    InvalidParameterError,
    RecipeError,
    RsPruneError,
    RunError,
)

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
    "finetune.lr": "0.01",
    "finetune.distill": "0.5",
}
DIVERGED = "diverged"


@dataclass(frozen=True)
class Done:
    """What came of a cell.

    Attributes:
        finish: the last event of its run.
        zeros: their share before the last cut, where the engine counted them.
        images: the number of test images.
    """

    finish: Event
    zeros: float | None
    images: int


Row = Callable[[Sequence[Done]], list[str]]


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
    def done(self) -> Done | None:
        """What came of a cell that was trained to its end."""
        log = self.log
        finish = log.find("finish")
        if finish is None or _broke_off(log):
            return None
        zeros = (log.find("round") or {}).get("sparsity")
        return Done(finish, zeros, (log.find("start") or {})["sizes"]["test"])

    @property
    def diverged(self) -> bool:
        """Whether a stage of the training failed."""
        log = self.log
        return log.find(DIVERGED) is not None or (
            log.find("finish") is not None and _broke_off(log)
        )

    @property
    def begun(self) -> bool:
        """Whether there is something to go on with: a mistake in the options leaves no start."""
        return self.log.find("start") is not None

    def check(self) -> None:
        """Refuse a directory that was begun with other settings."""
        if not self.begun:
            return
        old, new = map(_values, (recipe_of(self.directory), resolved(self.recipe)))
        other = [
            f"{key} was {old[key]!r} and is {new[key]!r}" for key in new if old[key] != new[key]
        ]
        if other:
            raise RunError(
                f"'{self.directory}' holds a cell with other settings: {'; '.join(other)}. Repeat "
                "them, or choose another directory with --out."
            )


def _broke_off(log: EventLog) -> bool:
    """Whether a stage of the engine's own recursion diverged, which ends no run."""
    last = log.find("round")
    return last is not None and (last["accuracy"] is None or log.find("finetuned") is None)


def _values(recipe: Recipe) -> dict[str, Any]:
    return {key: reduce(getattr, key.split("."), recipe) for key, _ in recipe_keys()}


def make_parser(doc: str | None, out: str, images: int) -> argparse.ArgumentParser:
    """The options that both benchmarks have."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--weights",
        metavar="FILE",
        required=True,
        help="the trained network that every cell starts from",
    )
    add("--images", type=int, default=images, help=f"of CIFAR-10's training images ({images})")
    add("--seeds", type=int, default=1, help="how many; the first is 0 (1)")
    add(
        "--only",
        nargs="+",
        metavar="NAME",
        default=["*"],
        help="some cells; 'x*' is all with x; an unknown name lists all",
    )
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
    if options.seeds < 1:
        raise InvalidParameterError("the benchmark", "seeds", "at least 1", options.seeds)
    file, settings = parse_settings(rest)
    given = {key.replace("-", "_"): value for key, value in settings.items()}
    given["weights"] = options.weights
    keys = {**BASE, "data": f"benchmarks.subset:cifar10_{options.images}", **more, **given}
    recipe = read_recipe(None, keys)
    if file is not None or recipe.weights is None:
        raise InvalidParameterError(
            "the benchmark", "weights", "a file of trained weights, after --weights",
            None if file is None else str(file), "Every cell starts from them.",
        )  # fmt: skip
    if "explore.prox_epochs" in keys:
        return recipe
    return changed(recipe, {"explore.prox_epochs": recipe.explore.epochs / 2})


def changed(recipe: Recipe, keys: Mapping[str, object]) -> Recipe:
    """The recipe with other values for some keys."""
    values = recipe.model_dump()
    for key, value in keys.items():
        *sections, name = key.split(".")
        reduce(lambda inner, section: inner[section], sections, values)[name] = value
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        where, known = f"the cell with {', '.join(keys)}", dict(recipe_keys())
        raise RecipeError([problem(where, {}, one, known) for one in error.errors()]) from error


def seeded(recipes: Mapping[str, Recipe], out: Path, seeds: int) -> list[Cell]:
    """The cells of some recipes: each once for every seed."""
    return [
        Cell(name, changed(recipe, {"seed": seed}), out / name / f"seed-{seed}")
        for seed in range(seeds)
        for name, recipe in recipes.items()
    ]


def chosen(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The names that match a pattern."""
    known = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise InvalidParameterError(
                "the benchmark", "only", f"one of {', '.join(known)}", pattern
            )
    return [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]


def work_off(cells: Sequence[Cell], work: Callable[[Cell, Display], object]) -> None:
    """Do what is left of every cell; one whose training diverges does not stop the others."""
    console = make_console()
    for cell in cells:
        if not cell.begun:
            if (cell.directory / "recipe.toml").exists():  # which a mistake has left
                shutil.rmtree(cell.directory)
            begin(cell.recipe, cell.directory)
        if cell.log.find("finish") or cell.log.find(DIVERGED):
            continue
        console.print(f"\n{cell.directory}", soft_wrap=True)
        display = Display(console)
        with display.shown():
            try:
                work(cell, display)
            except DivergenceError as error:
                cell.log.append({"event": DIVERGED, "why": str(error)})
                console.print(f"Diverged: {error}.", soft_wrap=True)


def print_table(heads: Sequence[str], rows: Mapping[str, Sequence[Cell]], figures: Row) -> None:
    """A table in Markdown, what the cells started from, and how much of it is chance.

    Args:
        heads: of the columns; the first is that of the rows' names.
        rows: for every name, the cells of all its seeds.
        figures: the other columns of a row, from its finished cells.
    """
    print(f"\n| {' | '.join(heads)} |")
    print(f"|{'---|' * len(heads)}")
    found: list[Done] = []
    for name, cells in rows.items():
        done = [one for one in (cell.done for cell in cells) if one is not None]
        found += done
        print(f"| {' | '.join(_row(name, cells, done, len(heads), figures))} |")
    if found:
        before, images = found[0].finish["before"], found[0].images
        share = before["test_accuracy"]
        print(
            f"\nThe given network: {before['macs']:,} MACs, validation accuracy "
            f"{before['validation_accuracy']:.2%}, test accuracy {share:.2%}. By chance alone, the "
            f"accuracy of a network on {images:,} test images has a standard deviation of "
            f"{100 * math.sqrt(share * (1 - share) / images):.2f} points."
        )


def _row(
    name: str, cells: Sequence[Cell], done: Sequence[Done], columns: int, figures: Row
) -> list[str]:
    if len(done) == len(cells):
        return [name, *figures(done)]
    lost = sum(cell.diverged for cell in cells)
    if not done:
        return [name, DIVERGED if lost else "not run", *[""] * (columns - 2)]
    diverged = f", {lost} diverged" if lost else ""
    return [f"{name} ({len(done)} of {len(cells)} seeds{diverged})", *figures(done)]


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)


def ratio(done: Sequence[Done], cost: str) -> str:
    """How many times fewer multiply-accumulates or weights there are."""
    return f"{mean([d.finish['before'][cost] / d.finish['after'][cost] for d in done]):.2f}x"


def percent(done: Sequence[Done], name: str) -> str:
    """The mean of an accuracy."""
    return f"{mean([d.finish['after'][name] for d in done]):.2%}"


def minutes(done: Sequence[Done]) -> str:
    """The mean time of training: its epochs, without the evaluation after each."""
    return f"{mean([d.finish['seconds'] for d in done]) / 60:.1f}"


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
