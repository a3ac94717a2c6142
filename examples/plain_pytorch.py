"""Compress a CNN with a plain PyTorch training loop, on scikit-learn's digits.

    python examples/plain_pytorch.py [--lam 3e-4] [--rounds 3] [--epochs 8] [--directory DIR]

With --directory, a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import rsprune
from rsprune.models import SmallCNN
from rsprune.optim import OBProxSG, phase_schedule

# ---- a training loop, as you have it ------------------------------------------------------


def digits() -> list[torch.utils.data.Dataset]:
    """Training, validation and test images."""
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    data = TensorDataset(images.float().view(-1, 1, 8, 8) / 8 - 1, labels)
    return random_split(data, [0.7, 0.1, 0.2], torch.Generator().manual_seed(0))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data, epochs: int) -> None:
    model.train()
    loader = DataLoader(data, 64, shuffle=True, generator=torch.Generator().manual_seed(0))
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            rates.step()


@torch.no_grad()
def accuracy(model: nn.Module, data) -> float:
    images, labels = next(iter(DataLoader(data, len(data))))
    return (model.eval()(images).argmax(1) == labels).float().mean().item()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


# ---- the same loop, compressing -----------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lam", type=float, default=3e-4, help="the l1 penalty (3e-4)")
    parser.add_argument("--rounds", type=int, default=3, help="of sparse training and cutting (3)")
    parser.add_argument("--epochs", type=int, default=8, help="of sparse training in a round (8)")
    parser.add_argument("--directory", help="keep the state here, to go on if interrupted")
    options = parser.parse_args()
    data, validation, test = digits()
    torch.manual_seed(0)
    model = SmallCNN(classes=10)
    train(model, sgd(model), data, epochs=5)

    def explore(model: nn.Module, lam: float) -> None:
        steps = -(-len(data) // 64)
        phases = phase_schedule(options.epochs, steps, prox_epochs=2, orthant_epochs=2)
        optimizer = OBProxSG(
            rsprune.param_groups(model, lam=lam), lr=0.05, momentum=0.9,
            prox_steps=phases.prox_steps, orthant_steps=phases.orthant_steps,
        )  # fmt: skip
        train(model, optimizer, data, options.epochs)

    result = rsprune.recursive_prune(
        model, test[0][0][None], explore=explore,
        evaluate=lambda model: accuracy(model, validation),
        finetune=lambda model: train(model, sgd(model), data, epochs=15),
        lam=options.lam, rounds=options.rounds, lambda_rule="constant",
        directory=options.directory,
    )  # fmt: skip
    print(result)
    for name, net in {"before": model, "after": result.model}.items():
        cost = rsprune.profile(net, test[0][0][None])
        print(f"{name}: {cost.params:,} parameters, {cost.macs:,} MACs, "
              f"test accuracy {accuracy(net, test):.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
