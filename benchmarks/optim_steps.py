"""Step times of every optimizer and phase, as ratios to torch.optim.SGD.

    python benchmarks/optim_steps.py [--rounds 40]

All contenders of a network take turns in one run on gradients of the same shapes; figures are
ratios of medians. `foreach` is compared with SGD(foreach=True, momentum=0.9), `fused` with
SGD(fused=True, momentum=0.9). Every optimizer of ours has momentum 0.9 too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from rsprune.optim import HSPG, RDA, OBProxSG, ProxSG, ProxSVRG

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.reference.masked import MaskedOBProxSG

Shapes = list[tuple[int, ...]]


def vgg16_shapes() -> tuple[Shapes, Shapes]:
    """Weights, and biases with batch norm, of VGG16 for CIFAR-10 (15.2 M weights)."""
    widths = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    weights: Shapes = [(k, c, 3, 3) for c, k in zip([3, *widths], widths, strict=False)]
    weights += [(512, 512), (512, 512), (10, 512)]
    return weights, [(w[0],) for w in weights for _ in range(3)]


def resnet50_shapes() -> tuple[Shapes, Shapes]:
    """Weights, and batch norm with the last bias, of ResNet50 for ImageNet (25.5 M weights)."""
    weights: Shapes = [(64, 3, 7, 7)]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            weights += [(width, channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                weights.append((4 * width, channels, 1, 1))
            channels = 4 * width
    others: Shapes = [(w[0],) for w in weights for _ in range(2)]
    return [*weights, (1000, 2048)], [*others, (1000,)]


class Network:
    """Parameters of one network, with gradients that all contenders share."""

    def __init__(self, shapes: tuple[Shapes, Shapes]) -> None:
        self.shapes = shapes
        self.grads = [[torch.randn(s) * 1e-2 for s in part] for part in shapes]

    def groups(self) -> list[dict[str, object]]:
        """Fresh parameters: those that become sparse, and the others."""
        made = []
        for lam, part, grads in zip((1e-4, 0.0), self.shapes, self.grads, strict=True):
            params = [nn.Parameter(torch.randn(s) * 0.05) for s in part]
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
            made.append({"params": params, "lam": lam})
        return made

    def plain(self) -> list[Tensor]:
        return [p for group in self.groups() for p in group["params"]]  # type: ignore[attr-defined]


def contenders(network: Network, fused: bool) -> dict[str, Callable[[], object]]:
    """The steps to time; the first is the yardstick."""
    ours = {"lr": 1e-4, "momentum": 0.9, "fused": fused or None}
    groups = network.groups
    svrg = ProxSVRG(groups(), **ours)
    svrg.snapshot(lambda: None)
    restore_gradients(svrg, network)
    steps: dict[str, Callable[[], object]] = {
        f"SGD, {'fused' if fused else 'foreach'}": torch.optim.SGD(
            network.plain(), lr=1e-4, momentum=0.9, foreach=not fused or None, fused=fused or None
        ).step,
        "Prox-SG": ProxSG(groups(), **ours).step,
        "OBProx-SG, prox": OBProxSG(groups(), **ours, prox_steps=10**9).step,
        "OBProx-SG, orthant": OBProxSG(groups(), **ours, prox_steps=0, orthant_steps=None).step,
        "RDA": RDA(groups(), **ours).step,
        "Prox-SVRG (with gradients for free)": lambda: svrg.step(lambda: 0.0),
        "HSPG, prox": HSPG(groups(), **ours, prox_steps=10**9).step,
        "HSPG, half-space": HSPG(groups(), **ours, prox_steps=0).step,
    }
    if not fused:
        for policy in ("skip", "raise"):
            steps[f"OBProx-SG, orthant, on_nonfinite={policy}"] = OBProxSG(
                groups(), **ours, prox_steps=0, orthant_steps=None, on_nonfinite=policy
            ).step
        for name, prox_steps in (("prox", 10**9), ("orthant", 0)):
            steps[f"literal, boolean masks: {name}"] = MaskedOBProxSG(
                groups(), lr=1e-4, momentum=0.9, prox_steps=prox_steps
            ).step
    return steps


def restore_gradients(optimizer: torch.optim.Optimizer, network: Network) -> None:
    for group, grads in zip(optimizer.param_groups, network.grads, strict=True):
        for param, grad in zip(group["params"], grads, strict=True):
            param.grad = grad


def medians(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():  # warm-up: state, caches, compilation
        step()
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40, help="timed steps per contender")
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {rounds} rounds")
    for title, shapes in (("VGG16 (CIFAR-10)", vgg16_shapes()), ("ResNet50", resnet50_shapes())):
        network = Network(shapes)
        for fused in (False, True):
            found = medians(contenders(network, fused), rounds)
            yardstick = next(iter(found))
            print(
                f"\n{title}: step time as a ratio to {yardstick} ({found[yardstick] * 1e3:.1f} ms)"
            )
            for name, value in found.items():
                print(f"  {name:<42} {value / found[yardstick]:5.2f}")


if __name__ == "__main__":
    main()
