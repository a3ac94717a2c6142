"""Whether fewer multiply-accumulates are less time, and whether a target of latency is met.

    python benchmarks/latency.py [--tables widths,rest,targets] [--runs 100] [--round-to 8]
                                 [--networks resnet50,...] [--runtimes torch,...] [--threads 1]

Widths: VGG16 for CIFAR-10 with the widths of the paper's row RSP (random weights), on onnxruntime:
the speed-up, and the efficiency, which is that divided by the ratio of multiply-accumulates, 7.18.
As the paper has the widths, and with round_to="auto" at equal multiply-accumulates.

Rest: where the time of these networks goes, by onnxruntime's own profile at batch 64, and how
many multiply-accumulates their convolutions do in a second.

Targets: networks at target_latency=0.5, batch 1. "planned" is the time that the plan measured, as a
part of the full network's, which has to be from 5 % below the target to the target; "again" is the
same of a model that is prepared and measured anew, at most 5 % above it.

In every row the models take turns in one run; times are medians.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import onnxruntime
import torch
from torch import nn

from rsprune.compression import compress, compress_with_plan, layer_sparsity
from rsprune.errors import RsPruneError, RsPruneWarning
from rsprune.metrics import profile
from rsprune.metrics.latency import latency
from rsprune.models import build
from rsprune.runtimes.batches import Inputs
from rsprune.runtimes.onnx import to_onnx
from rsprune.runtimes.program import capture
from rsprune.runtimes.ready import RUNTIMES

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.zoo import import_torchvision

RSP = (55, 31, 65, 63, 115, 75, 43, 52, 52, 52, 52, 52, 52, 52, 52)
BATCHES = (1, 8, 64)
NETWORKS = ("resnet50", "mobilenet_v2", "densenet121", "efficientnet_b0")
TARGET, WITHIN = 0.5, 0.05
BAR = 1.0  # of the efficiency
PROFILED = 15  # runs


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
        for threads in sorted({1, torch.get_num_threads()}):
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
                f"| {speed['auto']:.2f} | {speed['auto'] / equal:.2f} | >= {BAR:g} "
                f"| {verdict(speed['auto'] / equal >= BAR)} |",
                flush=True,
            )


def print_rest() -> None:
    print(
        "\n| network, batch 64 | convolutions in blocks, ms | other convolutions | conversions "
        "| poolings | all else | GMAC/s of convolutions |"
    )
    print("|---|---|---|---|---|---|---|")
    model, image = papers_vgg16(), torch.randn(1, 3, 32, 32)
    paper = compress_with_plan(model, image)
    macs = paper.plan.macs / paper.plan.full_macs
    models = {"full": model, "the paper's widths": paper.model}
    for step in (8, 32):
        models[f"multiples of {step}"] = compress(model, image, round_to=step, target_macs=macs)
    for name, one in models.items():
        spent = profiled(one.eval(), image.repeat(64, 1, 1, 1))
        layers = [layer for layer in profile(one, image).layers if "features" in layer.name]
        work = 64 * sum(layer.macs for layer in layers)
        rate = work / (spent["in blocks"] + spent["other"]) / 1e9
        cells = " | ".join(f"{1e3 * seconds:.1f}" for seconds in spent.values())
        print(f"| {name} | {cells} | {rate:.1f} |", flush=True)


def profiled(model: nn.Module, images: torch.Tensor) -> dict[str, float]:
    """The seconds of one run on one thread, by kind of node; each node's is a median."""
    inputs = Inputs("profiled", model, images)
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.intra_op_num_threads = True, 1
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    with TemporaryDirectory() as folder:
        options.profile_file_prefix = f"{folder}/profile"
        data = to_onnx(capture(model, inputs), inputs)
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        for _ in range(PROFILED):
            session.run(None, {session.get_inputs()[0].name: images.numpy()})
        for event in json.loads(Path(session.end_profiling()).read_text(encoding="utf-8")):
            if event["name"].endswith("_kernel_time"):
                found[event["name"], event["args"]["op_name"]].append(event["dur"] / 1e6)
    spent = dict.fromkeys(("in blocks", "other", "conversions", "poolings", "all else"), 0.0)
    for (node, operator), seconds in found.items():
        kind = {
            "Conv": "in blocks" if "nchwc" in node else "other", "FusedConv": "other",
            "ReorderInput": "conversions", "ReorderOutput": "conversions", "MaxPool": "poolings",
        }.get(operator, "all else")  # fmt: skip
        spent[kind] += median(seconds)
    return spent


def print_targets(
    networks: Sequence[str], runtimes: Sequence[str], threads: int, round_to: str, runs: int
) -> None:
    print(
        "\n| network | runtime | planned | again | MACs | round_to | planning, s "
        f"| within {WITHIN:.0%} |"
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
            met = 1 - WITHIN <= share / TARGET <= 1 and again / TARGET <= 1 + WITHIN
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
    parser.add_argument("--tables", type=listed, default=["widths", "rest", "targets"])
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
    if "rest" in options.tables:
        print_rest()
    if "targets" in options.tables:
        print_targets(
            options.networks, options.runtimes, options.threads, options.round_to, options.runs
        )


if __name__ == "__main__":
    main()
