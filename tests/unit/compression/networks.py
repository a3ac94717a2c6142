"""Networks and weights with known zeros for the tests of compression."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tests.zoo import import_torchvision

IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def sparsify(model: nn.Module, zeros: Mapping[str, float] | float, seed: int = 0) -> nn.Module:
    """Set a fraction of each weight, by name or of all, exactly to zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        share = zeros.get(name, 0.0) if isinstance(zeros, Mapping) else zeros
        if weight.dim() > 1 and share:
            flat = weight.view(-1)
            gone = torch.randperm(flat.numel(), generator=generator)[: int(share * flat.numel())]
            flat[gone] = 0
    return model


def classifier(name: str) -> nn.Module:
    """A network of torchvision with random weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"init_weights": False} if name in ("googlenet",) else {}
        model: nn.Module = import_torchvision().models.get_model(name, weights=None, **options)
    return model.eval()


def outputs_in_double(model: nn.Module, x: Tensor) -> Tensor:
    """What a model computes in evaluation mode, in double precision."""
    with torch.no_grad():
        out: Tensor = copy.deepcopy(model).double().eval()(x.double())
    return out


class Chain(nn.Module):
    """Three convolutions and a linear layer; ten, six and eight channels, or that many times."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 10 * times, 3, padding=1)
        self.b = nn.Conv2d(10 * times, 6 * times, 3, stride=2)
        self.c = nn.Conv2d(6 * times, 8 * times, 1)
        self.head = nn.Linear(8 * times, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.c(self.b(self.a(x).relu()).relu()).relu()
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Dense(nn.Module):
    """Joins by concatenation alone, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one = nn.Conv2d(8, 4, 3, padding=1)
        self.two = nn.Conv2d(12, 4, 3, padding=1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = torch.cat([x, self.one(x).relu()], 1)
        x = torch.cat([x, self.two(x).relu()], 1)
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Tied(nn.Module):
    """An embedding and a linear layer that share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.table(x).relu())
        return out
