"""Compress a CNN with Lightning's Trainer, on scikit-learn's digits.

    python examples/lightning_digits.py [--lam 3e-4] [--rounds 2] [--epochs 8]

Prints the rounds, then size and accuracy before and after.
"""

from __future__ import annotations

import argparse
import logging

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import rsprune
from rsprune.models import SmallCNN
from rsprune.optim import OBProxSG, phase_schedule


class Classifier(lightning.LightningModule):
    """Trains a network; with a penalty, sparse."""

    def __init__(self, network: nn.Module, lam: float = 0.0) -> None:
        super().__init__()
        self.network, self.lam = network, lam

    def training_step(self, batch: list[Tensor]) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.network(images), labels)

    def validation_step(self, batch: list[Tensor]) -> None:
        images, labels = batch
        self.log("accuracy", (self.network(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> dict:
        epochs, steps = self.trainer.max_epochs, self.trainer.estimated_stepping_batches
        optimizer = torch.optim.SGD(
            self.network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4
        )
        if self.lam:  # the only change that sparse training needs
            phases = phase_schedule(epochs, steps // epochs, prox_epochs=2, orthant_epochs=2)
            optimizer = OBProxSG(
                rsprune.param_groups(self.network, lam=self.lam), lr=0.05, momentum=0.9,
                prox_steps=phases.prox_steps, orthant_steps=phases.orthant_steps,
            )  # fmt: skip
        rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "interval": "step"}}


def trainer(epochs: int = 1) -> lightning.Trainer:
    lightning.seed_everything(0, verbose=False)  # the same training for the same model
    return lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lam", type=float, default=3e-4, help="the l1 penalty (3e-4)")
    parser.add_argument("--rounds", type=int, default=2, help="of sparse training and cutting (2)")
    parser.add_argument("--epochs", type=int, default=8, help="of sparse training in a round (8)")
    options = parser.parse_args()
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    data = TensorDataset(images.float().view(-1, 1, 8, 8) / 8 - 1, labels)
    parts = random_split(data, [0.7, 0.1, 0.2], torch.Generator().manual_seed(0))
    train, validation, test = (DataLoader(parts[i], 64, shuffle=i == 0) for i in range(3))

    def accuracy(network: nn.Module, loader: DataLoader = validation) -> float:
        (found,) = trainer().validate(Classifier(network), loader, verbose=False)
        return found["accuracy"]

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # it tells of every Trainer
    lightning.seed_everything(0, verbose=False)
    network = SmallCNN(classes=10)
    trainer(5).fit(Classifier(network), train)
    result = rsprune.recursive_prune(
        network, torch.zeros(1, 1, 8, 8),
        explore=lambda network, lam: trainer(options.epochs).fit(Classifier(network, lam), train),
        evaluate=accuracy,
        finetune=lambda network: trainer(15).fit(Classifier(network), train),
        lam=options.lam, rounds=options.rounds, lambda_rule="constant",
    )  # fmt: skip
    print(result)
    for name, net in {"before": network, "after": result.model}.items():
        cost = rsprune.profile(net, torch.zeros(1, 1, 8, 8))
        print(f"{name}: {cost.params:,} parameters, {cost.macs:,} MACs, "
              f"test accuracy {accuracy(net, test):.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
