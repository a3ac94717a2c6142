"""The sparse optimizers side by side on a small CNN, at equal penalty and steps.

    python benchmarks/sparse_training.py [--data digits fashion-mnist] [--seeds 3]

Prints, as means over the seeds: test accuracy, the share of exact zeros in convolution and linear
weights, the objective F (mean training loss + lam ||w||_1), and the zeros whose full gradient
exceeds lam (wrongly frozen), both with batch norm in training mode, as they were optimised. SGD has
no penalty and weight decay 5e-4; it is the accuracy to keep. "SGD, l1 in the loss" is what one
writes without a sparse optimizer. Digits: 1,437 training and 360 test images. Fashion-MNIST: the
first 6,000 training images and all 10,000 test images.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

import rsprune
from rsprune.data import Images, ImageSplit, load_digits, load_fashion_mnist
from rsprune.layers import layer_weights
from rsprune.models import SmallCNN
from rsprune.optim import RDA, OBProxSG, ProxSG, ProxSVRG, phase_schedule
from rsprune.optim.diagnostics import sparsity, wrongly_frozen

BATCH = 64


@dataclass(frozen=True)
class Setting:
    """What all methods have in common on one data set."""

    load: Callable[[], ImageSplit]
    train_images: int
    epochs: int
    lam: float
    lr: float
    phase_epochs: int
    momentum: float = 0.9
    gamma: float = 1.0

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.train_images // BATCH)


SETTINGS = {
    "digits": Setting(load_digits, 1437, epochs=30, lam=1e-3, lr=0.05, phase_epochs=3),
    "fashion-mnist": Setting(
        load_fashion_mnist, 6000, epochs=20, lam=3.5e-4, lr=0.1, phase_epochs=2
    ),
}


@dataclass(frozen=True)
class Outcome:
    """The figures of one run."""

    accuracy: float
    zeros: float
    objective: float
    wrongly_frozen: int


def make_optimizer(method: str, model: nn.Module, setting: Setting) -> torch.optim.Optimizer:
    settings = {"lr": setting.lr, "momentum": setting.momentum}
    groups = rsprune.param_groups(model, lam=setting.lam)
    if method == "SGD":
        return torch.optim.SGD(model.parameters(), **settings, weight_decay=5e-4)
    if method == "SGD, l1 in the loss":
        return torch.optim.SGD(model.parameters(), **settings)
    if method == "Prox-SG":
        return ProxSG(groups, **settings)
    if method == "OBProx-SG":
        phases = phase_schedule(
            setting.epochs,
            setting.steps_per_epoch,
            prox_epochs=setting.phase_epochs,
            orthant_epochs=setting.phase_epochs,
        )
        return OBProxSG(
            groups, **settings, prox_steps=phases.prox_steps, orthant_steps=phases.orthant_steps
        )
    if method == "RDA":
        return RDA(groups, **settings, gamma=setting.gamma)
    return ProxSVRG(groups, **settings)


METHODS = ("SGD", "SGD, l1 in the loss", "Prox-SG", "OBProx-SG", "RDA", "Prox-SVRG")


def mean_loss(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], total: int) -> float:
    """The mean loss over all batches; its gradient is added to ``.grad``."""
    value = 0.0
    for images, labels in batches:
        loss = nn.functional.cross_entropy(model(images), labels, reduction="sum") / total
        loss.backward()
        value += loss.item()
    return value


def run(
    method: str, data: ImageSplit, setting: Setting, seed: int, tick: Callable[[], None]
) -> Outcome:
    torch.manual_seed(seed)
    model = SmallCNN(data.classes)
    train = data.train.head(setting.train_images)
    optimizer = make_optimizer(method, model, setting)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, setting.epochs * setting.steps_per_epoch
    )
    shuffle = torch.Generator().manual_seed(seed)
    in_loss = setting.lam if method == "SGD, l1 in the loss" else 0.0
    for _ in range(setting.epochs):
        batches = list(train.batches(BATCH, shuffle))
        if isinstance(optimizer, ProxSVRG):
            optimizer.zero_grad()
            optimizer.snapshot(lambda batches=batches: mean_loss(model, batches, len(train)))
        for images, labels in batches:
            optimizer.step(lambda x=images, y=labels: batch_loss(model, optimizer, x, y, in_loss))
            rates.step()
        tick()
    return evaluate(model, optimizer, data, train, setting)


def batch_loss(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    lam: float = 0.0,
) -> float:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    if lam:
        loss = loss + lam * sum(w.abs().sum() for w in layer_weights(model).values())
    loss.backward()
    return loss.item()


def evaluate(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: ImageSplit,
    train: Images,
    setting: Setting,
) -> Outcome:
    model.eval()
    with torch.no_grad():
        hits = [model(x).argmax(1) == y for x, y in data.test.in_order(1000)]
    optimizer.zero_grad()
    model.train()  # the objective of training: batch norm with the statistics of each batch
    loss = mean_loss(model, train.in_order(BATCH), len(train))
    penalty = sum(w.detach().abs().sum().item() for w in layer_weights(model).values())
    frozen = 0 if isinstance(optimizer, torch.optim.SGD) else wrongly_frozen(optimizer).wrong
    return Outcome(
        torch.cat(hits).float().mean().item(),
        sparsity(model).ratio,
        loss + setting.lam * penalty,
        frozen,
    )


def print_table(name: str, setting: Setting, found: dict[str, list[Outcome]]) -> None:
    seeds = len(next(iter(found.values())))
    print(
        f"\n{name}: {setting.epochs} epochs of {setting.steps_per_epoch} steps, batch {BATCH}, "
        f"lam {setting.lam:g}, lr {setting.lr:g} (cosine), momentum {setting.momentum:g}, "
        f"RDA's gamma {setting.gamma:g}, {seeds} seed{'s' * (seeds > 1)}\n"
    )
    print("| method | test accuracy | zeros | F | wrongly frozen |")
    print("|---|---|---|---|---|")
    for method, outcomes in found.items():
        mean = {
            field: statistics.mean(getattr(o, field) for o in outcomes)
            for field in Outcome.__dataclass_fields__
        }
        plain = method.startswith("SGD")
        print(
            f"| {method} | {mean['accuracy']:.2%} | {mean['zeros']:.1%} | "
            f"{'' if plain else format(mean['objective'], '.4f')} | "
            f"{'' if plain else format(mean['wrongly_frozen'], ',.0f')} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3, help="runs per method")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    for name in options.data:
        setting = SETTINGS[name]
        data = setting.load()
        found: dict[str, list[Outcome]] = {}
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            for method in options.methods:
                for seed in range(options.seeds):
                    task = progress.add_task(f"{name} {method} {seed}", total=setting.epochs)
                    outcome = run(method, data, setting, seed, lambda t=task: progress.advance(t))
                    found.setdefault(method, []).append(outcome)
        print_table(name, setting, found)


if __name__ == "__main__":
    main()
