"""Fork-join blocks: residual blocks are found, with the widths that are their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rsprune
from rsprune.models import registry

X = torch.randn(2, 3, 32, 32)


@pytest.mark.parametrize("name", ["resnet20", "resnet56"])
def test_every_residual_block_is_one(name: str) -> None:
    """A CIFAR ResNet of depth 6n + 2 has 3n blocks; the inner width of each is its own."""
    model = registry.build(name)
    blocks = rsprune.trace(model, X).blocks
    assert len(blocks) == (int(name.removeprefix("resnet")) - 2) // 2
    for block in blocks:
        assert block.operator == "add"
        assert block.inner == (f"{block.name}.conv1",)
        assert block.outer


def test_a_chain_has_no_blocks() -> None:
    assert not rsprune.trace(registry.build("vgg16"), X).blocks


class Nested(nn.Module):
    """A gate inside a residual block, and a second block behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.a = nn.Conv2d(8, 6, 3, padding=1)
        self.gate = nn.Conv2d(6, 6, 1)
        self.b = nn.Conv2d(6, 8, 3, padding=1)
        self.c = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        y = self.a(x)
        y = y * self.gate(y).sigmoid()
        x = (x + self.b(y)).relu()
        x = x + self.c(x)
        return self.head(x.mean((2, 3)))


def test_blocks_nest_and_follow_each_other() -> None:
    """The gate's block lies within the first residual block; the second has no inner width."""
    gate, first, second = rsprune.trace(Nested(), X).blocks
    assert (gate.operator, first.operator, second.operator) == ("mul", "add", "add")
    assert gate.tensors == {"gate.weight", "gate.bias"}
    assert gate.tensors < first.tensors
    assert first.inner == ("a",)
    assert first.outer == ("stem",)
    assert not second.inner
    assert second.tensors == {"c.weight", "c.bias"}
