"""``publish``: a finished run as a small directory that anyone can check, and git can hold."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from rsprune.data.loading import change_folder
from rsprune.engine.directory import recipe_of
from rsprune.engine.events import EventLog
from rsprune.engine.recipe import Recipe
from rsprune.errors import RsPruneError, RsPruneWarning, RunError
from rsprune.files import atomic_directory
from rsprune.report.figures import figures
from rsprune.report.markdown import to_markdown
from rsprune.report.pictures import PICTURES, to_svg
from rsprune.report.read import EVENTS, LATENCY, read_run
from rsprune.report.run import Run

_MODEL, _RECIPE, _HISTORY, _REPORT = "model.safetensors", "recipe.toml", "history.json", "report.md"
_PICTURES = {f"{name}.svg" for name in PICTURES}
_KNOWN = {_MODEL, _RECIPE, _HISTORY, _REPORT, EVENTS, LATENCY, *_PICTURES}
_LATER = {"report.html"}  # which write_report adds
_ELSEWHERE = "Choose another directory with --to."


def publish(directory: str | os.PathLike[str], target: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write what shows and proves a finished run's result to ``target``; returns the files.

    These are the model, the recipe, the history, the events, ``report.md`` and its pictures, and
    ``latency.json`` if it is there. Of paths of this machine only the last part stays. Without
    matplotlib there are no pictures, and a warning.

    Args:
        directory: of the finished run.
        target: a new directory, or an earlier publication of the same model and data, which is
            replaced.

    Raises:
        RunError: if the run is not finished or lacks a file, or ``target`` holds anything else.
        StorageError: if ``target`` could not be written; then it is as it was before.
    """
    home, place = Path(directory), Path(target)
    run = _finished(home)
    _check_place(place, _names_only(run.start.model), _names_only(run.start.data))
    events = [_portable_event(event) for event in EventLog(home / EVENTS).events]
    recipe = Recipe.model_validate(_portable(recipe_of(home).model_dump(mode="json")))
    pictures = _pictures(run)
    with atomic_directory(place) as new:
        for name in (_MODEL, _HISTORY):
            shutil.copyfile(home / name, new / name)
        (new / _RECIPE).write_text(recipe.to_toml(), encoding="utf-8")
        (new / EVENTS).write_text("".join(json.dumps(event) + "\n" for event in events))
        if run.latency is not None:
            replace(run.latency, left_out={}).write(new / LATENCY)  # reasons are this machine's
        for name, picture in pictures.items():
            (new / f"{name}.svg").write_bytes(picture)
        (new / _REPORT).write_text(to_markdown(read_run(new), list(pictures)), encoding="utf-8")
        names = sorted(path.name for path in new.iterdir())
    return tuple(place / name for name in names)


def _finished(home: Path) -> Run:
    run = read_run(home)
    if run.finish is None:
        raise RunError(
            f"'{home}' is not finished; only finished runs can be published. Go on with it: "
            f"rsprune compress --resume {home}"
        )
    for name in (_MODEL, _RECIPE, _HISTORY):
        if not (home / name).is_file():
            raise RunError(f"'{home}' has no {name}, which every finished run has.")
    return run


def _check_place(place: Path, model: str, data: str) -> None:
    """Refuse to replace what is no earlier publication of this model and data."""
    if not place.exists():
        return
    if not place.is_dir():
        raise RunError(f"'{place}' is a file. {_ELSEWHERE}")
    found = {path.name for path in place.iterdir()}
    if not found:
        return
    others = sorted(found - _KNOWN - _LATER)
    if others:
        raise RunError(f"'{place}' holds '{others[0]}', which no published run has. {_ELSEWHERE}")
    if EVENTS not in found:
        raise RunError(f"'{place}' holds no {EVENTS}, which published runs have. {_ELSEWHERE}")
    old = read_run(place).start
    if (old.model, old.data) != (model, data):
        raise RunError(
            f"'{place}' holds {old.model} on {old.data}, not {model} on {data}. {_ELSEWHERE}"
        )


def _pictures(run: Run) -> dict[str, bytes]:
    """The pictures by name; none, and a warning, where they cannot be drawn."""
    shown = figures(run)
    try:
        return {name: to_svg(shown[name]) for name in PICTURES if name in shown}
    except RsPruneError as error:
        warnings.warn(f"Published without pictures. {error}", RsPruneWarning, stacklevel=3)
        return {}


def _portable_event(event: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _names_only(event)
    return found | ({"recipe": _portable(found["recipe"])} if "recipe" in found else {})


def _portable(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe that means the same elsewhere: data are where that machine keeps them."""
    found: dict[str, Any] = _names_only(recipe)
    return found | {"loading": {**found.get("loading", {}), "directory": None}}


def _names_only(value: Any) -> Any:
    """Without directories of this machine: of every absolute path, its last part."""
    if isinstance(value, dict):
        return {key: _names_only(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_names_only(inner) for inner in value]
    return change_folder(_name(value), _name) if isinstance(value, str) else value


def _name(text: str) -> str:
    path = Path(text)
    return path.name if path.is_absolute() else text
