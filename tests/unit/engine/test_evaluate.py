"""Accuracy: what it counts, where top-5 is reported, and that a model is left as it was."""

from __future__ import annotations

import torch
from torch import nn

from rsprune.data.memory import MemoryPart
from rsprune.engine.evaluate import BATCH, accuracies, accuracy, ranks
from rsprune.engine.machine import Machine
from rsprune.engine.recipe import Recipe

CLASSES = 12


def test_top_1_and_top_5_are_counted_in_one_pass() -> None:
    """Equal to a sort in Python, also over an incomplete last batch and where scores are equal."""
    random = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 9, (BATCH + 77, CLASSES), generator=random).float()
    labels = torch.randint(0, CLASSES, (len(scores),), generator=random)
    part = MemoryPart((scores.view(-1, 1, 1, CLASSES), labels))
    passes: list[int] = []
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5))  # in eval mode, what it is given
    model.register_forward_hook(lambda *_: passes.append(1))
    model.train()
    machine = Machine(Recipe(threads=1))

    places = [
        sorted(range(CLASSES), key=lambda c, row=row: -row[c]).index(label)  # type: ignore[misc]
        for row, label in zip(scores.tolist(), labels.tolist(), strict=True)
    ]
    wanted = tuple(sum(place < k for place in places) / len(places) for k in (1, 5))
    assert accuracies(model, part, machine, (1, 5)) == wanted
    assert len(passes) == 2  # batches
    assert wanted[0] < wanted[1]
    assert accuracy(model, part, machine) == wanted[0]
    assert (scores.argmax(1) == labels).float().mean().item() == torch.tensor(wanted[0]).item()
    assert all(module.training for module in model.modules())


def test_top_5_is_for_more_than_ten_classes() -> None:
    assert ranks(10) == (1,)
    assert ranks(11) == (1, 5)
