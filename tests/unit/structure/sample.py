"""A model with a bit of everything that surgery could disturb, and half of it cut."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import rsprune
from rsprune.structure.groups import ChannelGraph
from tests.surgery import Drop, cuts, half_drop


class Model(nn.Module):
    """A bit of everything that could be disturbed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.2)
        self.conv2 = nn.Conv2d(8, 6, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.scale = nn.Parameter(torch.rand(6, 1, 1))
        self.register_buffer("mean", torch.rand(1, 3, 1, 1))
        self.register_buffer("table", torch.rand(8, 1, 1), persistent=False)
        self.register_buffer("steps", torch.tensor(7))
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop((self.bn1(self.conv1(x - self.mean)) + self.table).relu())
        return self.fc((self.bn2(self.conv2(x)) * self.scale).relu().mean((2, 3)))


def image(**settings: Any) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(4, 3, 8, 8, generator=generator).to(**settings)


def prune_half(
    model: nn.Module, x: Tensor, **settings: Any
) -> tuple[nn.Module, ChannelGraph, Drop]:
    graph = rsprune.trace(model, x)
    drop = half_drop(graph, 0)
    assert len(drop) == 2
    return rsprune.prune(model, graph, drop=drop, **settings), graph, drop


def surviving(tensors: dict[str, Tensor], graph: ChannelGraph, drop: Drop) -> dict[str, Tensor]:
    """What is left of ``tensors``, by plain indexing."""
    left = dict(tensors)
    for (name, dim), gone in cuts(graph, drop).items():
        if name in left:
            kept = [i for i in range(tensors[name].shape[dim]) if i not in gone]
            left[name] = left[name].index_select(dim, torch.tensor(kept))
    return left
