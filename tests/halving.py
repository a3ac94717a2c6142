"""Half of a network of the zoo, held against the whole one.

Half of the units of every group are dropped at random; the pruned network must then compute what
the full one computes with these units set to zero.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import rsprune
from tests.zoo import Entry


@dataclass
class Outcome:
    """What came of halving one network.

    ``difference`` and ``training_difference`` compare the pruned network with the zeroed one in
    evaluation and in training mode. ``effect`` is how much zeroing changed the outputs at all.
    Where norms run over channels, ``exact_difference`` is that of dropping only the groups they do
    not see. ``warnings`` are those of ``trace``; ``left_whole`` those of ``prune``, which has to
    drop what it is told.
    """

    groups: int = 0
    units: int = 0
    statistics: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)
    left_whole: list[str] = field(default_factory=list)
    params: float = 1.0
    macs: float = 1.0
    counts: list[tuple[int, int]] = field(default_factory=list)
    difference: float = math.nan
    training_difference: float = math.nan
    exact_difference: float = math.nan
    effect: float = math.nan
    trace_seconds: float = math.nan
    prune_seconds: float = math.nan


def examine(entry: Entry) -> Outcome:
    """Halve one network and compare it with the zeroed one."""
    model, inputs, found = entry.build(), entry.inputs(), Outcome()
    with collected(found.warnings):
        graph, found.trace_seconds = timed(lambda: rsprune.trace(model, inputs))
    drop = half(graph)
    with collected(found.left_whole):
        slim, found.prune_seconds = timed(lambda: rsprune.prune(model, graph, drop=drop))
    prunable = [group for group in graph.groups if group.prunable]
    found.groups, found.units = len(prunable), sum(group.size for group in prunable)
    found.statistics = tuple(graph.statistics)
    found.frozen = tuple(f"{f.operator} in {f.module}: {f.reason}" for f in graph.frozen)
    found.params = count_parameters(slim) / count_parameters(model)

    full, flops = evaluate(model, inputs)
    small, small_flops = evaluate(slim, inputs)
    found.macs = small_flops / flops
    for net, counted in ((model, flops), (slim, small_flops)):
        found.counts.append((2 * rsprune.profile(net, inputs).macs, counted))
    zeroed = zero(model, graph, drop)
    expected, _ = evaluate(zeroed, inputs)
    found.difference = relative_difference(small, expected)
    found.effect = relative_difference(full, expected)
    found.training_difference = relative_difference(
        train_step(slim, inputs), train_step(zeroed, inputs, backward=False)
    )
    if graph.statistics:
        del slim, zeroed
        drop = unseen(graph, drop)
        with collected(found.left_whole):
            slim = rsprune.prune(model, graph, drop=drop)
        small, _ = evaluate(slim, inputs)
        expected, _ = evaluate(zero(model, graph, drop), inputs)
        found.exact_difference = relative_difference(small, expected)
    return found


@contextmanager
def collected(messages: list[str]) -> Iterator[None]:
    """Put our own warnings into the list."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    ours = [w for w in caught if issubclass(w.category, rsprune.RsPruneWarning)]
    messages.extend(str(warning.message) for warning in ours)


def unseen(graph: Any, drop: dict[str, list[int]]) -> dict[str, list[int]]:
    """The part of ``drop`` that no normalisation over channels sees."""
    seen = {
        group.name
        for group in graph.groups
        for slot in group.slots
        if slot.tensor.rpartition(".")[0] in graph.statistics
    }
    return {name: units for name, units in drop.items() if name not in seen}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def half(graph: Any) -> dict[str, list[int]]:
    """Half of the units of every group, at random."""
    generator = torch.Generator().manual_seed(3)
    return {
        group.name: torch.randperm(group.size, generator=generator)[: group.size // 2].tolist()
        for group in graph.groups
        if group.prunable and group.size > 1
    }


@torch.no_grad()
def zero(model: nn.Module, graph: Any, drop: dict[str, list[int]]) -> nn.Module:
    """A copy of the full network in which the dropped units are zero."""
    model = copy.deepcopy(model)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for group in graph.groups:
        for slot in group.slots if group.name in drop else ():
            where = [index for unit in drop[group.name] for index in slot.positions[unit]]
            tensors[slot.tensor].index_fill_(slot.dim, torch.tensor(where, dtype=torch.int64), 0)
    return model


def evaluate(model: nn.Module, inputs: Tensor) -> tuple[list[Tensor], int]:
    """Outputs in evaluation mode, and the floating point operations."""
    model.eval()
    with torch.no_grad(), plain_attention(), FlopCounterMode(display=False) as counter:
        outputs = model(inputs)
    return leaves(outputs), counter.get_total_flops()


def train_step(model: nn.Module, inputs: Tensor, backward: bool = True) -> list[Tensor]:
    """Outputs in training mode without dropout; a backward pass gives finite gradients."""
    model.train()
    for module in model.modules():
        if type(module).__name__ in RANDOM_MODULES:
            module.eval()
        if hasattr(module, "drop_rate"):  # functional dropout, in timm's networks
            module.drop_rate = 0.0
    with torch.set_grad_enabled(backward):
        outputs = leaves(model(inputs))
    if backward:
        torch.stack([output.square().mean() for output in outputs]).sum().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert grads
        assert all(grad.isfinite().all() for grad in grads)
        model.zero_grad()
    model.eval()
    return [output.detach() for output in outputs]


RANDOM_MODULES = {"Dropout", "Dropout1d", "Dropout2d", "StochasticDepth", "DropPath"}


@contextmanager
def plain_attention() -> Iterator[None]:
    """Attention as matrix products: the counter does not know the fused operators of the CPU."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def leaves(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]


def relative_difference(ours: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of any output, relative to that output's largest value."""
    worst = 0.0
    for mine, other in zip(ours, expected, strict=True):
        assert mine.shape == other.shape
        largest = other.abs().max().clamp_min(torch.finfo(other.dtype).tiny)
        difference = ((mine - other).abs().max() / largest).item()
        worst = max(worst, math.inf if math.isnan(difference) else difference)
    return worst


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
