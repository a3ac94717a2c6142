"""Train a small CNN on scikit-learn's digits, once with Prox-SG and once with OBProx-SG.

    python examples/digits.py [--epochs 30] [--lam 1e-3] [--seed 0]

Prints accuracy and exact zeros of every layer, side by side.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn

import rsprune
from rsprune.data import Images, ImageSplit, load_digits
from rsprune.models import SmallCNN
from rsprune.optim import OBProxSG, PhaseSchedule, ProxSG, phase_schedule
from rsprune.optim.diagnostics import Sparsity, sparsity

BATCH = 64
LR = 0.05
MOMENTUM = 0.9


def accuracy(model: nn.Module, data: Images) -> float:
    model.eval()
    with torch.no_grad():
        right = (model(data.images).argmax(1) == data.labels).float().mean().item()
    model.train()
    return right


def train(
    name: str,
    make_optimizer: Callable[[list[dict]], torch.optim.Optimizer],
    data: ImageSplit,
    schedule: PhaseSchedule,
    options: argparse.Namespace,
    progress: Progress,
) -> nn.Module:
    torch.manual_seed(options.seed)
    model = SmallCNN(data.classes)
    optimizer = make_optimizer(rsprune.param_groups(model, lam=options.lam))
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, schedule.total_steps)
    schedule.check(optimizer, rates)  # warns where lam is too weak for a run of this length
    task = progress.add_task(name, total=options.epochs, status="")
    shuffle = torch.Generator().manual_seed(options.seed)
    for _ in range(options.epochs):
        for images, labels in data.train.batches(BATCH, shuffle):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            phase = getattr(optimizer, "phase", "prox")
            optimizer.step()
            rates.step()
        status = f"loss {loss.item():.3f}  zeros {sparsity(model).ratio:5.1%}  {phase}"
        progress.update(task, advance=1, status=status)
    return model


def result_table(found: dict[str, tuple[float, Sparsity]], lam: float) -> Table:
    table = Table(title=f"digits, lam = {lam:g}")
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    table.add_row("test accuracy", *(f"{accuracy:.2%}" for accuracy, _ in found.values()))
    table.add_section()
    layers = next(iter(found.values()))[1].layers
    for i, layer in enumerate(layers):
        zeros = (f"{zeros.layers[i].ratio:.1%} zero" for _, zeros in found.values())
        table.add_row(layer.name, *zeros)
    table.add_section()
    table.add_row("all layers", *(f"{zeros.ratio:.1%} zero" for _, zeros in found.values()))
    return table


def compare(options: argparse.Namespace) -> None:
    console = Console()
    data = load_digits()
    steps = -(-len(data.train) // BATCH)
    schedule = phase_schedule(options.epochs, steps)
    settings = {"lr": LR, "momentum": MOMENTUM}
    phases = {"prox_steps": schedule.prox_steps, "orthant_steps": schedule.orthant_steps}
    makers: dict[str, Callable[[list[dict]], torch.optim.Optimizer]] = {
        "Prox-SG": lambda groups: ProxSG(groups, **settings),
        "OBProx-SG": lambda groups: OBProxSG(groups, **settings, **phases),
    }
    found = {}
    start = time.perf_counter()
    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} epochs  {task.fields[status]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        for name, make in makers.items():
            model = train(name, make, data, schedule, options, progress)
            found[name] = accuracy(model, data.test), sparsity(model)
    console.print(result_table(found, options.lam))
    console.print(
        f"{len(data.test)} test images; both runs took {time.perf_counter() - start:.0f} s."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=30, help="length of each run (30)")
    parser.add_argument("--lam", type=float, default=1e-3, help="the l1 penalty (0.001)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (0)")
    options = parser.parse_args()
    try:
        compare(options)
    except rsprune.RsPruneError as problem:
        parser.error(str(problem))
    except KeyboardInterrupt:
        parser.exit(130, "\nStopped; nothing was written.\n")


if __name__ == "__main__":
    main()
