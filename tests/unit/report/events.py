"""A realistic ``events.jsonl``: two rounds of the recursion on digits, with phases."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from rsprune.metrics.comparison import LatencyComparison, LatencyRow
from rsprune.metrics.latency import Latency

LAYERS = ("conv1", "conv2", "conv3", "fc1", "fc2")
SHAPES = ((32, 1, 3, 3), (64, 32, 3, 3), (64, 64, 3, 3), (128, 256), (10, 128))
WIDTHS = ((32, 64, 64, 128, 10), (21, 37, 30, 47, 10), (17, 25, 18, 29, 10))
PIXELS = (64, 16, 4, 1, 1)
EPOCHS = {"baseline": 8, "explore": 12, "finetune": 8}


def events() -> list[dict[str, Any]]:
    """A finished run; the numbers of one event fit those of the others."""
    lams = (1e-3, 1e-3 * cost(1)["weights"] / cost(0)["weights"])
    told: list[dict[str, Any]] = [start(), *stage("baseline", 0, None)]
    told.append({"event": "baseline", "validation_accuracy": 0.986013986013986, **cost(0)})
    for number, lam in enumerate(lams):
        told += stage("explore", number, lam)
        told.append(
            {
                "event": "round",
                "round": number,
                "lam": lam,
                "sparsity": told[-1]["sparsity"],
                "accuracy": (0.993006993006993, 0.979020979020979)[number],
                "before": cost(number),
                "after": cost(number + 1),
                "widths": widths(number, told[-1]["layers"]),
            }
        )
    told += stage("finetune", 1, None)
    told.append({"event": "finetuned", "round": 1, "accuracy": 0.986013986013986})
    told.append(finish())
    return told


def start() -> dict[str, Any]:
    return {
        "event": "start",
        "time": "2026-01-15T09:30:00+00:00",
        "version": "0.2.0",
        "model": "small_cnn",
        "data": "digits",
        "classes": 10,
        "input_shape": [1, 8, 8],
        "sizes": {"train": 1294, "validation": 143, "test": 360},
        "recipe": {
            "model": "small_cnn",
            "data": "digits",
            "seed": 0,
            "rounds": 2,
            "lam": 1e-3,
            "baseline": {"epochs": 8, "lr": 0.05},
            "explore": {"epochs": 12, "lr": 0.05, "optimizer": "obproxsg"},
            "finetune": {"epochs": 8, "lr": 0.02, "distill": None},
        },
        "environment": {
            "python": "3.11.7",
            "torch": "2.13.0",
            "platform": "Linux x86_64",
            "cpu": "a processor",
            "threads": 2,
            "device": "cpu",
        },
        "weights_sha256": "00ff" * 16,
    }


def stage(name: str, number: int, lam: float | None) -> list[dict[str, Any]]:
    """A stage and its epochs: the loss falls, and the sparsity grows in orthant phases."""
    epochs = EPOCHS[name]
    told: list[dict[str, Any]] = [
        {"event": "stage", "stage": name, "round": number, "epochs": epochs, "lam": lam}
    ]
    for epoch in range(1, epochs + 1):
        phase = ("prox", "orthant")[(epoch - 1) // 3 % 2] if name == "explore" else None
        grown = 1 - math.exp(-epoch / 4) if name == "explore" else 0.0
        held = 1.0 if phase == "orthant" else 0.45
        zeros = {
            f"{layer}.weight": round(grown * held * (0.93 - 0.2 * number) * (0.35 + 0.14 * i), 6)
            for i, layer in enumerate(LAYERS[:-1])
        } | {"fc2.weight": round(0.2 * grown * held, 6)}
        start_loss = {"baseline": 2.1, "explore": 0.5, "finetune": 0.2}[name]
        told.append(
            {
                "event": "epoch",
                "stage": name,
                "round": number,
                "epoch": epoch,
                "epochs": epochs,
                "loss": start_loss * math.exp(-epoch / 3) + 0.03,
                "accuracy": 1 - 0.25 * start_loss * math.exp(-epoch / 2),
                "validation_accuracy": 0.99 - 0.3 * start_loss * math.exp(-epoch / 2),
                "lr": 0.05 * (1 + math.cos(math.pi * epoch / epochs)) / 2,
                "phase": phase,
                "sparsity": sum(zeros.values()) / len(zeros),
                "layers": zeros,
                "seconds": 1.25,
            }
        )
    return told


def finish() -> dict[str, Any]:
    old, new = layer_costs(0), layer_costs(2)
    return {
        "event": "finish",
        "stopped": "2 rounds were asked for",
        "seconds": 61.25,
        "before": outcome(0, 0.986013986013986, 0.9888888888888889, 0.000412),
        "after": outcome(2, 0.986013986013986, 0.9861111111111112, 0.000231),
        "layers": [
            {"name": name, "before": a, "after": b}
            for name, a, b in zip(LAYERS, old, new, strict=True)
        ],
    }


def outcome(number: int, validation: float, test: float, latency: float) -> dict[str, Any]:
    return cost(number) | {
        "validation_accuracy": validation,
        "test_accuracy": test,
        "latency": latency,
    }


def widths(number: int, sparsity: dict[str, float]) -> list[dict[str, Any]]:
    return [
        {
            "group": LAYERS[i],
            "from": WIDTHS[number][i],
            "to": WIDTHS[number + 1][i],
            "sparsity": sparsity[f"{LAYERS[i + 1]}.weight"],
            "driver": LAYERS[i + 1],
        }
        for i in range(len(LAYERS) - 1)
    ]


def layer_costs(number: int) -> list[dict[str, Any]]:
    """Shapes and multiply-accumulates of the layers before round ``number``."""
    found, reads = [], 1
    for width, full, pixels in zip(WIDTHS[number], SHAPES, PIXELS, strict=True):
        shape = [width, reads, *full[2:]]
        found.append({"shape": shape, "macs": math.prod(shape) * pixels})
        reads = width * (4 if len(full) == 4 and full[0] == 64 and full[1] == 64 else 1)
    return found


def cost(number: int) -> dict[str, int]:
    layers = layer_costs(number)
    weights = sum(math.prod(layer["shape"]) for layer in layers)
    biases = 2 * sum(WIDTHS[number][:3]) + sum(WIDTHS[number][3:])
    macs = sum(layer["macs"] for layer in layers)
    return {"macs": macs, "weights": weights, "params": weights + biases}


def latency(reason: str = "no compiler") -> LatencyComparison:
    """Both models in two runtimes, with two numbers of threads."""
    macs = cost(0)["macs"] / cost(2)["macs"]
    rows = []
    for runtime, threads, ratio in (("torch", 1, 1.5), ("torch", 2, 0.5), ("onnxruntime", 1, 4.0)):
        slow = Latency(0.004 * ratio, 0.0038 * ratio, 0.0042 * ratio, 50, 3 * 2**20)
        fast = Latency(0.004, 0.0036, 0.0044, 50, None if threads == 2 else 2**20)
        rows.append(LatencyRow(runtime, 8, threads, slow, fast, ratio, ratio / macs))
    machine = {"cpu": "A <fast> processor", "torch": "2.13", "time": "2026-01-15T10:00:00+00:00"}
    return LatencyComparison(macs, tuple(rows), {"compile": reason}, machine)


def write(directory: Path, told: list[dict[str, Any]] | None = None) -> Path:
    """A run directory with these events."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(event) + "\n" for event in (events() if told is None else told)]
    (directory / "events.jsonl").write_text("".join(lines))
    return directory
