"""Compress a CNN with Hugging Face's Trainer, on scikit-learn's digits.

    python examples/hf_trainer.py [--lam 3e-4] [--rounds 2] [--epochs 8]

Prints the rounds, then size and accuracy before and after.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import random_split
from transformers import PrinterCallback, Trainer, TrainingArguments

import rsprune
from rsprune.models import SmallCNN
from rsprune.optim import OBProxSG, phase_schedule

BATCH = 64


class Classifier(nn.Module):
    """A network in the form that the Trainer wants: it returns loss and logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.network(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def score(found) -> dict[str, float]:
    return {"accuracy": (found.predictions.argmax(1) == found.label_ids).mean()}


def trainer(network: nn.Module, optimizers=(None, None), epochs: float = 1, data=None) -> Trainer:
    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(), num_train_epochs=epochs, seed=0, use_cpu=True,
        per_device_train_batch_size=BATCH, per_device_eval_batch_size=1024, max_grad_norm=0.0,
        remove_unused_columns=False, report_to="none", save_strategy="no", logging_strategy="no",
        disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    made = Trainer(
        Classifier(network), arguments, train_dataset=data, optimizers=optimizers,
        compute_metrics=score,
    )  # fmt: skip
    made.remove_callback(PrinterCallback)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lam", type=float, default=3e-4, help="the l1 penalty (3e-4)")
    parser.add_argument("--rounds", type=int, default=2, help="of sparse training and cutting (2)")
    parser.add_argument("--epochs", type=int, default=8, help="of sparse training in a round (8)")
    options = parser.parse_args()
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float().view(-1, 1, 8, 8) / 8 - 1
    rows = [{"images": x, "labels": y} for x, y in zip(images, labels, strict=True)]
    data, validation, test = random_split(rows, [0.7, 0.1, 0.2], torch.Generator().manual_seed(0))
    steps = -(-len(data) // BATCH)

    def train(network: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> None:
        rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
        trainer(network, (optimizer, rates), epochs, data).train()

    def sgd(network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

    def explore(network: nn.Module, lam: float) -> None:
        phases = phase_schedule(options.epochs, steps, prox_epochs=2, orthant_epochs=2)
        optimizer = OBProxSG(
            rsprune.param_groups(network, lam=lam), lr=0.05, momentum=0.9,
            prox_steps=phases.prox_steps, orthant_steps=phases.orthant_steps,
        )  # fmt: skip
        train(network, optimizer, options.epochs)

    def accuracy(network: nn.Module, data=validation) -> float:
        return trainer(network).evaluate(data)["eval_accuracy"]

    torch.manual_seed(0)
    network = SmallCNN(classes=10)
    train(network, sgd(network), 5)
    result = rsprune.recursive_prune(
        network, images[:1], explore=explore, evaluate=accuracy,
        finetune=lambda network: train(network, sgd(network), 15),
        lam=options.lam, rounds=options.rounds, lambda_rule="constant",
    )  # fmt: skip
    print(result)
    for name, net in {"before": network, "after": result.model}.items():
        cost = rsprune.profile(net, images[:1])
        print(f"{name}: {cost.params:,} parameters, {cost.macs:,} MACs, "
              f"test accuracy {accuracy(net, test):.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
