"""Step times of every optimizer and phase, as ratios to torch.optim.SGD.

    python benchmarks/optim_steps.py [--rounds 40]

All contenders of a network take turns in one run on gradients of the same shapes; figures are
ratios of medians. `foreach` is compared with SGD(foreach=True, momentum=0.9), `fused` with
SGD(fused=True, momentum=0.9). Every optimizer of ours has momentum 0.9 too. State is counted in
tensors of the size of all parameters. The literal implementation is tests/reference/masked.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import rsprune
from rsprune.models import SmallCNN
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

    def groups(self) -> list[dict[str, Any]]:
        """Fresh parameters: those that become sparse, and the others."""
        made = []
        for lam, part, grads in zip((1e-4, 0.0), self.shapes, self.grads, strict=True):
            params = [nn.Parameter(torch.randn(s) * 0.05) for s in part]
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
            made.append({"params": params, "lam": lam})
        return made

    def plain(self) -> list[Tensor]:
        return [p for group in self.groups() for p in group["params"]]


def contenders(network: Network, fused: bool) -> dict[str, Optimizer]:
    """The optimizers to time; the first is the yardstick."""
    form = "fused" if fused else "foreach"
    ours: dict[str, Any] = {"lr": 1e-4, "momentum": 0.9, form: True}
    groups = network.groups
    orthant = {"prox_steps": 0, "orthant_steps": None}
    found: dict[str, Optimizer] = {
        f"SGD, {form}": torch.optim.SGD(network.plain(), **ours),
        "Prox-SG": ProxSG(groups(), **ours),
        "OBProx-SG, prox": OBProxSG(groups(), **ours, prox_steps=10**9),
        "OBProx-SG, orthant": OBProxSG(groups(), **ours, **orthant),
        "RDA": RDA(groups(), **ours),
        "Prox-SVRG, gradients not counted": ProxSVRG(groups(), **ours),
        "HSPG, prox": HSPG(groups(), **ours, prox_steps=10**9),
        "HSPG, half-space": HSPG(groups(), **ours, prox_steps=0),
    }
    if not fused:
        for policy in ("skip", "raise"):
            found[f"OBProx-SG, orthant, {policy}"] = OBProxSG(
                groups(), **ours, **orthant, on_nonfinite=policy
            )
        for phase, steps in (("prox", 10**9), ("orthant", 0)):
            found[f"literal, boolean masks, {phase}"] = MaskedOBProxSG(
                groups(), lr=1e-4, momentum=0.9, prox_steps=steps
            )
    return found


def stepper(optimizer: Optimizer) -> Callable[[], object]:
    """One step on gradients that are there already."""
    if not isinstance(optimizer, ProxSVRG):
        return optimizer.step
    grads = {p: p.grad for group in optimizer.param_groups for p in group["params"]}
    optimizer.snapshot(lambda: None)

    def closure() -> float:
        for param, grad in grads.items():
            param.grad = grad
        return 0.0

    return lambda: optimizer.step(closure)


def interleaved_medians(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def state_per_weight(optimizer: Optimizer) -> float:
    """State, in tensors of the size of the parameters."""
    kept = [value for own in optimizer.state.values() for value in own.values()]
    held = sum(value.numel() for value in kept if isinstance(value, Tensor))
    return held / sum(p.numel() for group in optimizer.param_groups for p in group["params"])


def print_step_times(title: str, network: Network, fused: bool, rounds: int) -> None:
    found = contenders(network, fused)
    steps = {name: stepper(optimizer) for name, optimizer in found.items()}
    start = time.perf_counter()
    for step in steps.values():  # warm-up: state, caches, compilation
        step()
        step()
    warm_up = time.perf_counter() - start
    medians = interleaved_medians(steps, rounds)
    yardstick = next(iter(medians))
    print(f"\n{title}: step time as a ratio to {yardstick} ({medians[yardstick] * 1e3:.1f} ms)")
    if fused:
        print(f"compilation of all and two steps: {warm_up:.0f} s")
    print("\n| optimizer | ratio | bar | state, in tensors |\n|---|---|---|---|")
    for name, optimizer in found.items():
        ratio = medians[name] / medians[yardstick]
        bar = BARS.get((fused, name))
        verdict = "" if bar is None else f"{bar:.2f} {'met' if ratio <= bar else 'MISSED'}"
        print(f"| {name} | {ratio:.2f} | {verdict} | {state_per_weight(optimizer):.0f} |")


BARS = {
    (False, "Prox-SG"): 1.5,
    (False, "OBProx-SG, prox"): 1.5,
    (False, "OBProx-SG, orthant"): 2.5,
    (True, "Prox-SG"): 1.25,
    (True, "OBProx-SG, prox"): 1.25,
    (True, "OBProx-SG, orthant"): 1.25,
}


def print_nonfinite_share(rounds: int) -> None:
    """What the check of gradients costs in a whole training step of a small CNN."""
    torch.manual_seed(0)
    images, labels = torch.randn(64, 1, 28, 28), torch.randint(10, (64,))

    def training_step(policy: str) -> Callable[[], None]:
        model = SmallCNN()
        optimizer = OBProxSG(rsprune.param_groups(model, lam=1e-4), lr=1e-4, on_nonfinite=policy)

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

        return step

    medians = interleaved_medians(
        {policy: training_step(policy) for policy in ("ignore", "skip", "raise")}, 3 * rounds
    )
    print("\nA whole training step of SmallCNN, 64 images of 28 x 28, as a ratio to 'ignore':")
    print(", ".join(f"{name} {value / medians['ignore']:.3f}" for name, value in medians.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40, help="timed steps per contender")
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {rounds} rounds")
    for title, shapes in (("VGG16 (CIFAR-10)", vgg16_shapes()), ("ResNet50", resnet50_shapes())):
        network = Network(shapes)
        for fused in (False, True):
            print_step_times(title, network, fused, rounds)
    print_nonfinite_share(rounds)


if __name__ == "__main__":
    main()
