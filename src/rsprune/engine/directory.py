"""The directory of a run: how it begins, and that one run is in it at a time."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from rsprune.data.loading import change_folder
from rsprune.engine.events import EventLog
from rsprune.engine.recipe import SEARCH, Recipe, read_recipe
from rsprune.errors import RunError, StorageError
from rsprune.files import write_atomic

if sys.platform != "win32":
    import fcntl

_PATIENCE = 60  # seconds that other processes wait for the first


def begin(recipe: Recipe, directory: Path) -> None:
    """Make a run directory with its recipe; of several processes, the first one does."""
    if rank():
        return _wait_for(directory / "recipe.toml")
    if (directory / "recipe.toml").exists():
        owner = "search-lambda" if (directory / SEARCH).exists() else "compress"
        raise RunError(
            f"'{directory}' holds a run already. Go on with it: rsprune {owner} --resume "
            f"{directory}. Or delete it, or choose another directory with --out."
        )
    if directory.is_dir() and any(directory.iterdir()):
        raise RunError(f"'{directory}' is not empty. Choose another directory with --out.")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"The directory '{directory}' cannot be made: {error.strerror}. Choose another with "
            "--out."
        ) from error
    write_atomic(directory / "recipe.toml", resolved(recipe).to_toml())
    return None


def resolved(recipe: Recipe) -> Recipe:
    """The recipe with what depends on this machine, or on other keys, decided."""
    threads = recipe.threads or torch.get_num_threads()  # the bits of a sum depend on them
    loading, weights = recipe.loading, recipe.weights
    if loading.directory is not None:
        loading = loading.model_copy(update={"directory": _absolute(loading.directory)})
    if weights is not None:
        weights = _absolute(weights)
    baseline = recipe.baseline
    if recipe.weights is not None:
        baseline = baseline.model_copy(update={"epochs": 0})  # it is trained already
    return recipe.model_copy(
        update={
            "threads": threads, "loading": loading, "weights": weights, "baseline": baseline,
            "data": change_folder(recipe.data, _absolute),
        }
    )  # fmt: skip


def _absolute(path: str) -> str:
    """A path that means the same wherever the run is resumed."""
    return str(Path(path).expanduser().absolute())


def recipe_of(directory: Path) -> Recipe:
    """The recipe of a run directory."""
    path = directory / "recipe.toml"
    if not path.is_file():
        raise RunError(f"'{directory}' is no run directory: it has no recipe.toml.")
    recipe = read_recipe(path)
    if "spread" in recipe.compress.model_fields_set:
        return recipe
    even = recipe.compress.model_copy(update={"spread": "even"})  # before there was a choice
    return recipe.model_copy(update={"compress": even})


def is_published(directory: Path) -> bool:
    """Whether it holds a finished run without its state: nothing is written there."""
    if (directory / "state").exists():
        return False
    return EventLog(directory / "events.jsonl").find("finish") is not None


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Keep other runs out of a directory."""
    try:
        lock = open(directory / f".lock-{rank()}", "w")  # noqa: SIM115
    except OSError as error:
        raise StorageError(
            f"The run directory '{directory}' cannot be written to: {error.strerror}."
        ) from error
    with lock:
        if sys.platform != "win32":
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"Another process is running in '{directory}'.") from None
        yield


def rank() -> int:
    """The number of this process among those that a launcher started."""
    return int(os.environ.get("RANK", "0"))


def state_directory(directory: Path) -> Path:
    """Where this process keeps the recursion's state: the first one's is the run's.

    Others go through the same stages, and begin from a copy of the first one's state.
    """
    main = directory / "state"
    main.mkdir(exist_ok=True)
    if not rank():
        return main
    own = directory / f".state-{rank()}"
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(main, own)
    return own


def _wait_for(path: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while not path.exists():
        if time.monotonic() > end:
            raise RunError(f"The first process has not written '{path}' in {_PATIENCE} s.")
        time.sleep(0.1)
