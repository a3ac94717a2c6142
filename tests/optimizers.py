"""The registry that the conformance suite runs over: every optimizer, in every phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rsprune.optim import HSPG, RDA, OBProxSG, ProxSG, ProxSVRG
from rsprune.optim.base import SparseOptimizer


@dataclass(frozen=True)
class Case:
    """An optimizer with settings under which a few steps make zeros and cross its phases."""

    name: str
    cls: type[SparseOptimizer]
    settings: dict[str, Any] = field(default_factory=dict)
    lam: float = 0.02
    phase_switches: tuple[int, ...] = ()

    def __call__(self, params: Any, **changes: Any) -> SparseOptimizer:
        return self.cls(params, **{"lr": 0.1, "lam": self.lam, **self.settings, **changes})


CASES = (
    Case("ProxSG", ProxSG),
    Case("OBProxSG", OBProxSG, {"prox_steps": 3, "orthant_steps": 4}, phase_switches=(3, 7, 10)),
    Case("OBProxSG+", OBProxSG, {"prox_steps": 4, "orthant_steps": None}, phase_switches=(4,)),
    Case("RDA", RDA, {"gamma": 5.0}),
    Case("ProxSVRG", ProxSVRG, phase_switches=(4,)),
    Case("HSPG", HSPG, {"prox_steps": 4, "eps": 0.1}, lam=0.8, phase_switches=(4,)),
)


def small_net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 4 * 4, 5),
    )
    return net.to(dtype)


BATCHES = 4


def batch(step: int | None, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Batch ``step`` of a data set of four batches; None for the whole data set."""
    if step is None:
        parts = [batch(i, dtype) for i in range(BATCHES)]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    generator = torch.Generator().manual_seed(100 + step % BATCHES)
    x = torch.randn(16, 1, 6, 6, generator=generator).to(dtype)
    return x, torch.randint(5, (16,), generator=generator)


def loss_closure(net: nn.Module, optimizer: Any, step: int | None) -> Callable[[], Tensor]:
    dtype = next(net.parameters()).dtype

    def closure() -> Tensor:
        optimizer.zero_grad()
        x, y = batch(step, dtype)
        loss = nn.functional.cross_entropy(net(x).float(), y)
        loss.backward()
        return loss

    return closure


def train(net: nn.Module, optimizer: Any, steps: range) -> None:
    """Take these steps; variance reduction gets a snapshot at the start of every epoch."""
    for step in steps:
        if hasattr(optimizer, "snapshot") and step % BATCHES == 0:
            optimizer.snapshot(loss_closure(net, optimizer, None))
        optimizer.step(loss_closure(net, optimizer, step))


def weights(net: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in net.state_dict().values()]


def assert_same_bits(left: list[Tensor], right: list[Tensor]) -> None:
    for a, b in zip(left, right, strict=True):
        assert torch.equal(a, b), (a - b).abs().max()


def zeros(net: nn.Module) -> int:
    return sum(int((p == 0).sum()) for p in net.parameters())
