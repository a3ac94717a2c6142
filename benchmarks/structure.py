"""Tracing and pruning: time against Torch-Pruning, growth with depth, memory.

    python benchmarks/structure.py [--rounds 5] [--plot growth.html]

Time: trace and prune half of all units against building Torch-Pruning's pruner and its step(), on
the same network in evaluation mode with one image of 224 x 224. Both take turns in one run; figures
are medians. Growth: a CIFAR ResNet of up to 1000 layers. Memory: peak resident memory while tracing
with a batch of 8, in a process of its own, as a multiple of the parameters, beside that of an
ordinary forward pass.
"""

from __future__ import annotations

import argparse
import copy
import gc
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor, nn

import rsprune

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.halving import half
from tests.zoo import import_torchvision


@dataclass(frozen=True)
class Race:
    """A network, its output layer, and how much faster than the peer we have to be."""

    name: str
    output: str
    speedup: float
    seconds: float = float("inf")


RACES = (
    Race("resnet50", "fc", 1),
    Race("mobilenet_v3_large", "classifier.3", 1),
    Race("densenet121", "classifier", 10),
    Race("densenet201", "classifier", 20, seconds=3),
)
DEPTHS = (20, 98, 200, 500, 998)
FLATNESS = 1.5  # time per layer, deepest to the one of about 100 layers
ROOM = 1.2  # peak memory of tracing, in sizes of the parameters


def verdict(met: bool) -> str:
    return "MET" if met else "MISSED"


def classifier(name: str) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: nn.Module = import_torchvision().models.get_model(name, weights=None)
    return model.eval()


def halve(model: nn.Module, inputs: Tensor) -> nn.Module:
    graph = rsprune.trace(model, inputs)
    return rsprune.prune(model, graph, drop=half(graph))


def halve_by_peer(model: nn.Module, inputs: Tensor, output: str) -> nn.Module:
    import torch_pruning

    torch_pruning.pruner.MagnitudePruner(
        model,
        inputs,
        importance=torch_pruning.importance.MagnitudeImportance(p=2),
        pruning_ratio=0.5,
        ignored_layers=[model.get_submodule(output)],
    ).step()
    return model


def timed(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def print_races(rounds: int) -> None:
    print("\n| network | ours, s | Torch-Pruning, s | times faster | bar | |")
    print("|---|---|---|---|---|---|")
    inputs = torch.randn(1, 3, 224, 224)
    for race in RACES:
        model = classifier(race.name)
        halve(model, inputs)  # warm-up: lazy imports
        ours, peer = [], []
        for _ in range(rounds if race.speedup == 1 else max(1, rounds // 2)):
            ours.append(timed(partial(halve, model, inputs)))
            fresh = copy.deepcopy(model)  # the peer prunes in place
            peer.append(timed(partial(halve_by_peer, fresh, inputs, race.output)))
        mine, other = statistics.median(ours), statistics.median(peer)
        bar = f">= {race.speedup:g}"
        if race.seconds < float("inf"):
            bar += f" and <= {race.seconds:g} s"
        met = verdict(other / mine >= race.speedup and mine <= race.seconds)
        print(
            f"| {race.name} | {mine:.2f} | {other:.2f} | {other / mine:.1f} | {bar} | {met} |",
            flush=True,
        )


class BasicBlock(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(channels, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


def cifar_resnet(depth: int) -> nn.Module:
    """16, 32 and 64 channels, ``depth`` = 6 n + 2, convolutions in shortcuts: no code to try."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1)]
    channels = 16
    for width in (16, 32, 64):
        for block in range((depth - 2) // 6):
            stride = 2 if block == 0 and width > 16 else 1
            layers.append(BasicBlock(channels, width, stride))
            channels = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*layers, *head).eval()


def print_growth(rounds: int, plot: Path | None) -> None:
    inputs = torch.randn(1, 3, 32, 32)
    models = {depth: cifar_resnet(depth) for depth in DEPTHS}
    times: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    for _ in range(rounds):
        for depth, model in models.items():
            times[depth].append(timed(partial(halve, model, inputs)))
    seconds = {depth: statistics.median(values) for depth, values in times.items()}
    print("\n| layers | trace and prune, s | per layer, ms |\n|---|---|---|")
    for depth, value in seconds.items():
        print(f"| {depth} | {value:.2f} | {1e3 * value / depth:.2f} |")
    growth = (seconds[998] / 998) / (seconds[98] / 98)
    met = verdict(growth <= FLATNESS)
    print(f"\nTime per layer, 998 layers to 98: {growth:.2f}, bar <= {FLATNESS}: {met}")
    if plot is not None:
        draw(seconds, plot)


def draw(seconds: dict[int, float], path: Path) -> None:
    import plotly.graph_objects as go

    figure = go.Figure(go.Scatter(x=list(seconds), y=list(seconds.values()), mode="lines+markers"))
    figure.update_layout(
        title="Trace and prune grow linearly with depth (CIFAR ResNet, one thread)",
        xaxis={"title": "layers", "rangemode": "tozero"},
        yaxis={"title": "seconds", "rangemode": "tozero"},
        template="simple_white",
    )
    figure.write_html(path)
    print(f"The plot is in {path}")


def memory(field: str) -> int:
    """``VmRSS`` (resident memory now) or ``VmHWM`` (its peak), in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def extra_memory(name: str, forward: bool) -> tuple[int, int]:
    """Bytes of the parameters, and peak of the memory that the work needs beside the model."""
    torch.set_num_threads(1)
    tiny = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))
    halve(tiny.eval(), torch.randn(1, 3, 8, 8))  # code that is loaded on first use does not count
    model, inputs = classifier(name), torch.randn(8, 3, 224, 224)
    gc.collect()
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    with torch.no_grad():
        model(inputs) if forward else rsprune.trace(model, inputs)
    return sum(p.nbytes for p in model.parameters()), memory("VmHWM") - before


def print_memory() -> None:
    print("\nMemory beside the model, batch 8, in sizes of its parameters:")
    print(
        "\n| network | parameters, MiB | forward pass | trace | bar | |\n|---|---|---|---|---|---|"
    )
    for name in ("vgg16", "resnet50"):
        found = []
        for forward in (True, False):
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                size, extra = pool.submit(extra_memory, name, forward).result()
            found.append(extra / size)
        cells = f"{size / 2**20:.0f} | {found[0]:.2f} | {found[1]:.2f} | <= {ROOM}"
        print(f"| {name} | {cells} | {verdict(found[1] <= ROOM)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="timed runs per contender")
    parser.add_argument("--plot", type=Path, help="write the growth as an HTML page (plotly)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, one thread, {options.rounds} rounds")
    print_races(options.rounds)
    print_growth(options.rounds, options.plot)
    print_memory()


if __name__ == "__main__":
    main()
