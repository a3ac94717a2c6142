"""Half of every network in the zoo, as a table.

    python benchmarks/zoo.py [NAME ...] [--peer] [--fast]

NAME is a network or the beginning of its name, e.g. torchvision:resnet or timm: (all by default).
Half of the units of every group are dropped at random, in float64; difference is the largest one
to the full network with these units set to zero, relative to the largest output, in evaluation and
in training mode. Networks with normalisations over channels cannot match; for these, in brackets,
only the groups that no such norm sees are dropped. With --peer, Torch-Pruning's MagnitudePruner
halves the same network: the last columns say whether it prunes, runs, and matches its zeroed
network. The networks are those of tests/zoo.py, each in a process of its own.
"""

from __future__ import annotations

import argparse
import copy
import resource
import signal
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.halving import count_parameters, evaluate, examine, relative_difference
from tests.zoo import ZOO, Entry

TOLERANCE = 1e-5
PATIENCE = 300  # seconds for the peer
ROOM = 14 * 2**30  # bytes for the peer
HEADER = (
    "network", "groups", "units", "parameters", "MACs", "difference, eval", "train",
    "trace, s", "prune, s", "memory, GiB", "verdict",
)  # fmt: skip
PEER_HEADER = ("peer prunes, s", "its parameters", "its difference")


def row(name: str) -> list[str]:
    """The table's line for one network."""
    entry = named(name)
    try:
        found = examine(entry)
    except Exception as error:
        return [name, *["-"] * 9, f"FAILED: {summary(error)}"]
    eval_cell, train_cell = f"{found.difference:.0e}", f"{found.training_difference:.0e}"
    faults = []
    if found.statistics:
        eval_cell = f"({found.exact_difference:.0e})"
        train_cell = "by nature"
    if not exact(found):
        faults.append("INEXACT")
    faults += [f"prune: {text[:200]}" for text in found.left_whole[:1]]
    if found.statistics and not entry.statistics:
        faults.append(f"statistics claimed for {found.statistics[0]}")
    if entry.most_macs is not None and found.macs > entry.most_macs:
        faults.append(f"MACs over {entry.most_macs}")
    if any(ours != torchs for ours, torchs in found.counts):
        faults.append(f"MACs counted differently: {found.counts}")
    if found.effect < 100 * TOLERANCE and not entry.refused:
        faults.append("nothing dropped that matters")
    notes = [f"{len(found.warnings)} warnings"] if found.warnings else []
    notes += [f"{len(found.frozen)} frozen"] if found.frozen else []
    return [
        name, str(found.groups), str(found.units), f"{found.params:.2f}", f"{found.macs:.3f}",
        eval_cell, train_cell, f"{found.trace_seconds:.2f}", f"{found.prune_seconds:.2f}",
        f"{peak_memory():.1f}", "; ".join(faults or ["ok"]) + "".join(f" ({n})" for n in notes),
    ]  # fmt: skip


def exact(found: Any) -> bool:
    if found.statistics:
        return bool(found.exact_difference <= TOLERANCE)
    return bool(max(found.difference, found.training_difference) <= TOLERANCE)


def named(name: str) -> Entry:
    return next(entry for entry in ZOO if entry.name == name)


def summary(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}".replace("|", "/")


def peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def peer_row(name: str) -> list[str]:
    """What Torch-Pruning makes of the same network."""
    entry = named(name)
    model, inputs = entry.build(), entry.inputs()
    before = count_parameters(model)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    try:
        slim, zeroed, seconds = peer_prune(model, inputs[:1])
        signal.alarm(0)
    except Exception as error:
        return ["-", "-", f"does not prune: {summary(error)}"]
    try:
        small, _ = evaluate(slim, inputs)
        difference = relative_difference(small, evaluate(zeroed, inputs)[0])
    except Exception as error:
        return [f"{seconds:.1f}", "-", f"does not run: {summary(error)}"]
    verdict = "" if difference <= TOLERANCE else " by nature" if entry.statistics else " WRONG"
    share = count_parameters(slim) / before
    return [f"{seconds:.1f}", f"{share:.2f}", f"{difference:.0e}{verdict}"]


def give_up(*_: Any) -> None:
    raise TimeoutError(f"more than {PATIENCE} s")


def peer_prune(model: nn.Module, inputs: Tensor) -> tuple[nn.Module, nn.Module, float]:
    """The network pruned by half, its zeroed counterpart, and the time.

    Which elements are left is read off a copy whose every tensor counts its own elements.
    """
    import torch_pruning

    slim = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in floating(slim).values():
            tensor.copy_(torch.arange(tensor.numel(), dtype=tensor.dtype).view_as(tensor))
    classes = outputs_of(slim, inputs)
    start = time.perf_counter()
    torch_pruning.pruner.MagnitudePruner(
        slim,
        inputs,
        importance=torch_pruning.importance.RandomImportance(),
        pruning_ratio=0.5,
        ignored_layers=classes,
    ).step()
    seconds = time.perf_counter() - start
    real, left = floating(model), floating(slim)
    with torch.no_grad():
        for name, tensor in left.items():
            kept = tensor.flatten().long()
            values = real[name].flatten()[kept]
            tensor.copy_(values.view_as(tensor))
            real[name].copy_(
                torch.zeros_like(real[name]).flatten().index_copy(0, kept, values)
                .view_as(real[name])
            )  # fmt: skip
    return slim.eval(), model.eval(), seconds


def floating(model: nn.Module) -> dict[str, Tensor]:
    """Weights, biases and batch norm statistics; other buffers are constants of the network."""
    statistics = ("running_mean", "running_var")
    kept = {name: buffer for name, buffer in model.named_buffers() if name.endswith(statistics)}
    return {**dict(model.named_parameters()), **kept}


def outputs_of(model: nn.Module, inputs: Tensor) -> list[nn.Module]:
    """The layers as wide as an output: classifiers, auxiliary heads, feature pyramids."""
    widths = {leaf.shape[1] for leaf in evaluate(model, inputs)[0] if leaf.dim() > 1}
    return [
        module
        for module in model.modules()
        if getattr(module, "out_features", getattr(module, "out_channels", None)) in widths
    ]


def apart(work: Any, name: str) -> list[str]:
    """Run in a fresh process: memory is given back, and a crash costs one line."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=prepare) as pool:
        try:
            return list(pool.submit(work, name).result())
        except BrokenProcessPool:
            return [name] * (work is row) + ["the process died"]


def prepare() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="networks (default: all)")
    parser.add_argument("--fast", action="store_true", help="only those of the ordinary tests")
    parser.add_argument("--peer", action="store_true", help="compare with Torch-Pruning")
    options = parser.parse_args()
    chosen = [
        entry.name
        for entry in ZOO
        if entry.name.startswith(tuple(options.names) or "") and not (options.fast and entry.slow)
    ]
    header = HEADER + PEER_HEADER * options.peer
    print(f"torch {torch.__version__}, one thread\n\n{line(header)}\n|{'---|' * len(header)}")
    failures = 0
    for name in chosen:
        cells = apart(row, name)
        failures += not cells[-1].startswith("ok")
        print(line(cells + (apart(peer_row, name) if options.peer else [])), flush=True)
    print(f"\n{len(chosen) - failures} of {len(chosen)} networks ok")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
