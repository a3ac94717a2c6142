"""What a run tells of itself: its circumstances at the start, its measurements at the end."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rsprune
from rsprune.data import Data
from rsprune.engine.evaluate import accuracies, ranks
from rsprune.engine.events import Event
from rsprune.engine.machine import Machine
from rsprune.engine.recipe import Recipe
from rsprune.metrics.comparison import processor_name
from rsprune.metrics.latency import latency
from rsprune.recursion import PruneResult

_BLOCK = 2**20  # bytes


def start_event(recipe: Recipe, data: Data, machine: Machine) -> Event:
    """What the run is about, and where it runs."""
    return {
        "event": "start",
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "version": rsprune.__version__,
        "model": recipe.model,
        "data": recipe.data,
        "classes": data.classes,
        "input_shape": list(data.input_shape),
        "sizes": data.sizes,
        "recipe": recipe.model_dump(mode="json"),
        "weights_sha256": None if recipe.weights is None else _sha256(Path(recipe.weights)),
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "platform": platform.platform(),
            "cpu": processor_name(),
            "threads": torch.get_num_threads(),
            "device": str(machine.device),
        },
    }


def _sha256(path: Path) -> str:
    """By which others know that they have the same file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def finish_event(
    full: nn.Module, result: PruneResult, data: Data, machine: Machine, seconds: float
) -> Event:
    """The network before and after; the only look at the test data.

    With more than ten classes, each side has ``test_top5`` and ``validation_top5`` too.
    """
    example = torch.zeros(1, *data.input_shape, device=machine.device)
    times = latency({"before": full, "after": result.model}, example)
    before, after = (
        {
            **asdict(size),
            "validation_accuracy": validation,
            **_measured(model, data, machine),
            "latency": times[side].median,
        }
        for side, model, size, validation in (
            ("before", full, result.before, result.baseline),
            ("after", result.model, result.after, result.accuracy),
        )
    )
    return {
        "event": "finish",
        "stopped": result.stopped,
        "seconds": seconds,
        "before": before,
        "after": after,
        "layers": _layers(full, result.model, example),
    }


def _measured(model: nn.Module, data: Data, machine: Machine) -> dict[str, float]:
    """The accuracies that the recursion has not asked for."""
    top = ranks(data.classes)
    first, *more = accuracies(model, data.test, machine, top)
    if not more:
        return {"test_accuracy": first}
    _, validation = accuracies(model, data.validation, machine, top)
    return {"test_accuracy": first, "test_top5": more[0], "validation_top5": validation}


def _layers(full: nn.Module, slim: nn.Module, example: Tensor) -> list[dict[str, Any]]:
    """The weights of every layer that multiplies, before and after."""
    before, after = (_weights(model, example) for model in (full, slim))
    return [
        {"name": name, "before": before[name], "after": after[name]}
        for name in before
        if name in after
    ]


def _weights(model: nn.Module, example: Tensor) -> dict[str, dict[str, Any]]:
    found = {}
    for layer in rsprune.profile(model, example).layers:
        weight = getattr(model.get_submodule(layer.name), "weight", None)
        if weight is not None:
            found[layer.name] = {"shape": list(weight.shape), "macs": layer.macs}
    return found


def history_json(result: PruneResult) -> str:
    """The recursion's result without its model; the same for the same run on any clock."""
    names = [field.name for field in fields(result) if field.name not in ("model", "history")]
    values = {name: getattr(result, name) for name in names}
    values |= {name: asdict(values[name]) for name in ("before", "after")}
    rounds = [asdict(one) for one in result.history]
    return json.dumps({**values, "history": rounds}, indent=1) + "\n"
