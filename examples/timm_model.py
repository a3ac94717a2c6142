"""Compress a residual network of timm, on scikit-learn's digits.

    python examples/timm_model.py [--model resnet10t] [--lam 2e-3] [--target-macs 0.4]

Prints the rounds, then size and accuracy before and after.
"""

from __future__ import annotations

import argparse

import timm
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import rsprune
from rsprune.optim import OBProxSG, phase_schedule

BATCH = 64
Data = tuple[Tensor, Tensor]


def digits() -> list[Data]:
    """Training, validation and test images, of 32 x 32 pixels."""
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = nn.functional.interpolate(images.float().view(-1, 1, 8, 8) / 8 - 1, 32)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return [(images[part], labels[part]) for part in order.split([1257, 180, 360])]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: Data, epochs: int) -> None:
    model.train()
    images, labels = data
    shuffle = torch.Generator().manual_seed(0)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (len(labels) // BATCH))
    for _ in range(epochs):
        for batch in torch.randperm(len(labels), generator=shuffle).split(BATCH)[:-1]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            rates.step()


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    return (model.eval()(data[0]).argmax(1) == data[1]).float().mean().item()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet10t", help="a residual network (resnet10t)")
    parser.add_argument("--lam", type=float, default=2e-3, help="the l1 penalty (2e-3)")
    parser.add_argument("--unit", default="auto", help="auto, block or layer (auto)")
    parser.add_argument("--target-macs", type=float, help="the size, e.g. 0.4; else lam decides")
    options = parser.parse_args()
    data, validation, test = digits()
    torch.manual_seed(0)
    model = timm.create_model(
        options.model, in_chans=1, num_classes=10, channels=(16, 32, 64, 128), stem_width=8
    )
    train(model, sgd(model), data, epochs=4)

    def explore(model: nn.Module, lam: float) -> None:
        phases = phase_schedule(5, len(data[1]) // BATCH, prox_epochs=2, orthant_epochs=3)
        optimizer = OBProxSG(
            rsprune.param_groups(model, lam=lam), lr=0.1, momentum=0.9,
            prox_steps=phases.prox_steps, orthant_steps=phases.orthant_steps,
        )  # fmt: skip
        train(model, optimizer, data, epochs=5)

    result = rsprune.recursive_prune(
        model, test[0][:2], explore=explore,  # two images: batch norm does not train on one
        evaluate=lambda model: accuracy(model, validation),
        finetune=lambda model: train(model, sgd(model), data, epochs=4),
        lam=options.lam, rounds=1, unit=options.unit, target_macs=options.target_macs,
    )  # fmt: skip
    print(result)
    for name, net in {"before": model, "after": result.model}.items():
        cost = rsprune.profile(net, test[0][:1])
        print(f"{name}: {cost.params:,} parameters, {cost.macs:,} MACs, "
              f"test accuracy {accuracy(net, test):.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
