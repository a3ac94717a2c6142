"""Whether fewer multiply-accumulates are less time, and whether a target of latency is met.

    python benchmarks/latency.py [--tables widths,targets] [--runs 100] [--round-to 8]
                                 [--networks resnet50,...] [--runtimes torch,...] [--threads 1]

Widths: VGG16 for CIFAR-10 with the widths of the paper's row RSP (random weights), on onnxruntime:
the speed-up, and the efficiency, which is that divided by the ratio of multiply-accumulates, 7.18.
As the paper has the widths, and with round_to="auto" at equal multiply-accumulates.

Targets: networks at target_latency=0.5, batch 1. "planned" is the time that the plan measured, as a
part of the full network's; "again" is the same, of a model that is cut, prepared and measured anew.

In every row the models take turns in one run; times are medians.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from rsprune.compression import compress_with_plan, layer_sparsity
from rsprune.errors import RsPruneError, RsPruneWarning
from rsprune.metrics.latency import latency
from rsprune.models import build
from rsprune.runtimes.ready import RUNTIMES

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.zoo import import_torchvision

RSP = (55, 31, 65, 63, 115, 75, 43, 52, 52, 52, 52, 52, 52, 52, 52)
BATCHES, THREADS = (1, 8, 64), (1, 2)
NETWORKS = ("resnet50", "mobilenet_v2", "densenet121", "efficientnet_b0")
TARGET, WITHIN = 0.5, 0.05
BAR = 1.0  # of the efficiency


def verdict(met: bool) -> str:
    return "MET" if met else "MISSED"


@torch.no_grad()
def papers_vgg16() -> nn.Module:
    """VGG16 with as many zeros as lead to the widths of row RSP."""
    model = build("vgg16")
    parameters = dict(model.named_parameters())
    readers = list(layer_sparsity(model))[1:]
    for name, width in zip(readers, RSP, strict=True):
        weight = parameters[name]
        zeros = round(weight.numel() * (1 - (width - 0.5) / weight.shape[1]))
        weight.view(-1)[torch.randperm(weight.numel())[:zeros]] = 0
    return model


def print_widths(runs: int) -> None:
    print(
        "\n| batch | threads | full, ms | RSP, speed-up | efficiency "
        "| auto: round_to | MACs ratio | speed-up | efficiency | bar | |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    model, image = papers_vgg16(), torch.randn(1, 3, 32, 32)
    paper = compress_with_plan(model, image)
    assert tuple(paper.plan.widths.values()) == RSP
    ratio = paper.plan.full_macs / paper.plan.macs
    for batch in BATCHES:
        for threads in THREADS:
            where = {"runtime": "onnxruntime", "batch": batch, "threads": threads}
            auto = compress_with_plan(model, image, round_to="auto", **where)
            models = {"full": model, "paper": paper.model, "auto": auto.model}
            times = {
                name: t.median for name, t in latency(models, image, runs=runs, **where).items()
            }
            speed = {name: times["full"] / times[name] for name in ("paper", "auto")}
            equal = auto.plan.full_macs / auto.plan.macs
            print(
                f"| {batch} | {threads} | {1e3 * times['full']:.2f} | {speed['paper']:.2f} "
                f"| {speed['paper'] / ratio:.2f} | {auto.plan.round_to} | {equal:.2f} "
                f"| {speed['auto']:.2f} | {speed['auto'] / ratio:.2f} | >= {BAR:g} "
                f"| {verdict(speed['auto'] / ratio >= BAR)} |",
                flush=True,
            )


def print_targets(
    networks: Sequence[str], runtimes: Sequence[str], threads: int, round_to: str, runs: int
) -> None:
    print(
        "\n| network | runtime | planned | again | MACs | round_to | planning, s "
        f"| {1 - WITHIN:g} to 1 times {TARGET:g} |"
    )
    print("|---|---|---|---|---|---|---|---|")
    models = import_torchvision().models
    image = torch.randn(1, 3, 224, 224)
    step = round_to if round_to == "auto" else int(round_to)
    for network in networks:
        model = models.get_model(network, weights=None)
        for runtime in runtimes:
            where = {"runtime": runtime, "batch": 1, "threads": threads}
            start = time.perf_counter()
            try:
                made = compress_with_plan(
                    model, image, round_to=step, target_latency=TARGET, **where
                )
            except RsPruneError as error:
                print(f"| {network} | {runtime} | {error} | | | | | MISSED |", flush=True)
                continue
            seconds = time.perf_counter() - start
            pair = {"full": model, "slim": made.model}
            times = latency(pair, image, runs=runs, seconds=30, **where)
            again = times["slim"].median / times["full"].median
            share = made.plan.time.share if made.plan.time else 1.0
            met = (1 - WITHIN) * TARGET <= share <= TARGET
            print(
                f"| {network} | {runtime} | {share:.3f} | {again:.3f} "
                f"| {made.plan.macs / made.plan.full_macs:.3f} | {made.plan.round_to} "
                f"| {seconds:.0f} | {verdict(met)} |",
                flush=True,
            )


def listed(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=listed, default=["widths", "targets"])
    parser.add_argument(
        "--runs", type=int, default=100, help="of each model in the last measurement"
    )
    parser.add_argument("--round-to", default="8", help="of the networks with targets, or auto")
    parser.add_argument("--networks", type=listed, default=list(NETWORKS))
    parser.add_argument("--runtimes", type=listed, default=list(RUNTIMES))
    parser.add_argument("--threads", type=int, default=1, help="of the networks with targets")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RsPruneWarning)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {options.runs} runs of each model")
    if "widths" in options.tables:
        print_widths(options.runs)
    if "targets" in options.tables:
        print_targets(
            options.networks, options.runtimes, options.threads, options.round_to, options.runs
        )


if __name__ == "__main__":
    main()
