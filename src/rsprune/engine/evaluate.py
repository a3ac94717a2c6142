"""The accuracy of a classifier, and whether two of them can be compared."""

from __future__ import annotations

import torch
from torch import nn

from rsprune.data import Part
from rsprune.data.loading import change_folder
from rsprune.engine.machine import Machine
from rsprune.engine.recipe import Recipe
from rsprune.shadow import evaluating

BATCH = 500
_FEW = 10  # classes; five guesses among so few say little


def accuracy(model: nn.Module, part: Part, machine: Machine) -> float:
    """The share of images in ``part`` that ``model`` classifies rightly; its mode is kept."""
    return accuracies(model, part, machine, (1,))[0]


def same_test_images(one: Recipe, other: Recipe) -> bool:
    """Whether accuracies under two recipes can be compared; where a folder is may differ."""
    return _test_images(one) == _test_images(other)


def _test_images(recipe: Recipe) -> tuple[object, ...]:
    return change_folder(recipe.data, lambda _: ""), recipe.loading.normalise, recipe.loading.size


def ranks(classes: int) -> tuple[int, ...]:
    """What is reported for so many classes: top-1, and top-5 where there are more than ten."""
    return (1, 5) if classes > _FEW else (1,)


@torch.no_grad()
def accuracies(
    model: nn.Module, part: Part, machine: Machine, top: tuple[int, ...]
) -> tuple[float, ...]:
    """For each k of ``top``, the share of images whose class is among the k highest scores.

    One pass over ``part``, in the precision of the model's weights, in which it is saved, whatever
    it was trained in; its mode is kept.
    """
    right = torch.zeros(len(top), dtype=torch.int64, device=machine.device)
    with evaluating(model):
        for images, labels in part.in_order(BATCH, shard=machine.shard, device=machine.device):
            scores = model(images.contiguous(memory_format=machine.memory_format))
            # (B, classes): of equal scores the first class comes first, as for argmax
            hits = scores.sort(dim=1, descending=True, stable=True).indices == labels[:, None]
            right += torch.stack([hits[:, :k].sum() for k in top])
    return tuple(int(count) / len(part) for count in machine.total(right))
