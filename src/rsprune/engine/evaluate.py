"""The accuracy of a classifier."""

from __future__ import annotations

import torch
from torch import nn

from rsprune.data import Part
from rsprune.engine.machine import Machine

BATCH = 500


@torch.no_grad()
def accuracy(model: nn.Module, part: Part, machine: Machine) -> float:
    """The share of images in ``part`` that ``model`` classifies rightly; its mode is kept."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=machine.device)
    for images, labels in part.in_order(BATCH, shard=machine.shard, device=machine.device):
        with machine.autocast():
            scores = model(images.contiguous(memory_format=machine.memory_format))
        right += (scores.argmax(1) == labels).sum()
    for module, mode in modes.items():
        module.training = mode
    return int(machine.total(right)) / len(part)
