"""``rsprune.compress``: trace, plan, select, cut."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from rsprune.checks import check_choice
from rsprune.compression.activations import as_runs
from rsprune.compression.cost import Costs
from rsprune.compression.plan import GroupPlan, WidthPlan
from rsprune.compression.reset import check_resets, reset
from rsprune.compression.select import drop_at_random, drop_by_magnitude, drop_by_nonzeros
from rsprune.compression.sparsity import Sparsity
from rsprune.compression.thinet import Scales, drop_by_thinet, rescale
from rsprune.compression.widths import Options, plan
from rsprune.compression.zero import check_unchanged, dead_units
from rsprune.errors import InvalidParameterError, RsPruneWarning
from rsprune.metrics.macs import profile
from rsprune.shadow import as_inputs, named_tensors
from rsprune.structure.cut import cut_optimizer, survivors
from rsprune.structure.groups import ChannelGraph
from rsprune.structure.prune import alive_labels, check_optimizer, prune
from rsprune.structure.trace import trace

_CHOICES = {
    "magnitude": drop_by_magnitude, "nonzeros": drop_by_nonzeros, "random": drop_at_random,
}  # fmt: skip
SELECTIONS = (*_CHOICES, "thinet")
MODES = ("ratio", "zero-groups")
# What the ratio mode alone looks at, but for ``spread``, which recipes write out in either mode.
_DEFAULTS = {
    "epsilon": 0.1, "unit": "auto", "round_to": 1, "target_macs": None, "target_params": None,
    "target_latency": None, "runtime": "torch", "batch": 1, "threads": None,
    "select": "magnitude", "inherit": True,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Compressed:
    """A smaller model, the plan of its widths and the units that were dropped, by group."""

    model: nn.Module
    plan: WidthPlan
    drop: Mapping[str, list[int]]


def compress(
    model: nn.Module,
    example_inputs: Any,
    *,
    epsilon: float = 0.1,
    unit: str = "auto",
    round_to: int | str = 1,
    spread: str = "auto",
    target_macs: float | None = None,
    target_params: float | None = None,
    target_latency: float | None = None,
    runtime: str = "torch",
    batch: int = 1,
    threads: int | None = None,
    select: str = "magnitude",
    inherit: bool = True,
    mode: str = "ratio",
    batches: Iterable[Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> nn.Module:
    """A new, smaller model: its widths follow from the zeros in ``model``, which stays as it was.

    Where the zeros are too few for any cut and there is no target, it warns.

    Args:
        model: a model that was trained sparse.
        example_inputs: one batch, as for :func:`rsprune.trace`.
        epsilon, unit, round_to, spread: see :func:`rsprune.plan_widths`.
        target_macs, target_params, target_latency: see there.
        runtime, batch, threads: where times are measured; see there.
        select: which units survive. ``"magnitude"``: those with the largest norm over everything
            coupled to them; ``"nonzeros"``: those with the most non-zero weights; ``"thinet"``:
            those that keep what the next layers compute on ``batches``, whose weights are then
            rescaled by least squares; ``"random"``: by lot, to compare with, and always the same.
        inherit: True keeps the surviving weights; False initialises the small model anew.
        mode: ``"ratio"`` is the paper's rule; ``"zero-groups"`` removes exactly the units that are
            zero, and the outputs stay what they were.
        batches: for ``select="thinet"``: inputs, or tuples that begin with them; by default
            ``example_inputs``.
        optimizer: an optimizer of the model; it goes on with the new model's parameters.
    """
    found = compress_with_plan(
        model, example_inputs, epsilon=epsilon, unit=unit, round_to=round_to, spread=spread,
        target_macs=target_macs, target_params=target_params, target_latency=target_latency,
        runtime=runtime, batch=batch, threads=threads, select=select, inherit=inherit, mode=mode,
        batches=batches, optimizer=optimizer,
    )  # fmt: skip
    by_rule = mode == "ratio" and (target_macs, target_params, target_latency) == (None,) * 3
    if by_rule and not any(found.drop.values()):
        _warn_if_dense(found.plan)
    return found.model


def _warn_if_dense(planned: WidthPlan) -> None:
    """Say that no group has the zeros for which the rule would take one of its units."""
    counted = [(group.counted, group.size) for group in planned.groups if group.counted is not None]
    if counted and all(zeros.zeros * size < zeros.elements for zeros, size in counted):
        most = max(zeros.ratio for zeros, _ in counted)
        warnings.warn(
            f"compress cut nothing: the zeros are too few, {most:.1%} where they are most. Train "
            "the model with a sparse optimizer, or set target_macs, target_params or "
            "target_latency.",
            RsPruneWarning,
            stacklevel=3,
        )


def compress_with_plan(
    model: nn.Module,
    example_inputs: Any,
    *,
    epsilon: float = 0.1,
    unit: str = "auto",
    round_to: int | str = 1,
    spread: str = "auto",
    target_macs: float | None = None,
    target_params: float | None = None,
    target_latency: float | None = None,
    runtime: str = "torch",
    batch: int = 1,
    threads: int | None = None,
    select: str = "magnitude",
    inherit: bool = True,
    mode: str = "ratio",
    batches: Iterable[Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Compressed:
    """As :func:`compress`, without its warning; also returns the plan and the dropped units."""
    options = Options(
        "compress", epsilon, unit, round_to, spread, target_macs, target_params, target_latency,
        runtime, batch, threads,
    )  # fmt: skip
    check_choice("compress", "select", select, SELECTIONS)
    check_choice("compress", "mode", mode, MODES)
    _check_together(options, select, inherit, mode, batches, optimizer)
    graph = trace(model, example_inputs)
    check_optimizer("compress", model, optimizer)
    if not inherit:
        check_resets(model)
    scales: Scales = {}
    if mode == "zero-groups":
        drop = dead_units(model, graph)
        planned = _zero_plan(model, graph, drop)
    else:
        planned = plan(model, graph, options)
        if select == "thinet":
            runs = (
                [graph.arguments] if batches is None else as_runs(model, batches, graph.arguments)
            )
            drop, scales = drop_by_thinet(model, graph, planned.widths, runs)
        else:
            drop = _CHOICES[select](model, graph, planned.widths)
    slim = prune(model, graph, drop)
    planned, drop = _as_cut(slim, graph, planned, drop)
    kept = survivors(graph.labels, alive_labels(graph, drop))
    if inherit:
        rescale(slim, kept, {name: own for name, own in scales.items() if name in drop})
    else:
        reset(slim)
    if mode == "zero-groups":
        check_unchanged(model, slim, graph.arguments)
    if optimizer is not None:
        cut_optimizer(optimizer, model, slim, kept)
    return Compressed(slim, planned, drop)


def _check_together(
    options: Options, select: str, inherit: object, mode: str, batches: object, optimizer: object
) -> None:
    """Refuse options that contradict each other."""
    check_choice("compress", "inherit", inherit, (True, False))
    if batches is not None and select != "thinet":
        raise InvalidParameterError(
            "compress", "batches", f"left out with select={select!r}", type(batches).__name__,
            'Only select="thinet" looks at data.',
        )  # fmt: skip
    if optimizer is not None and not inherit:
        raise InvalidParameterError(
            "compress", "optimizer", "left out with inherit=False", type(optimizer).__name__,
            "What it remembers is about weights that are gone: make a new one.",
        )  # fmt: skip
    if mode != "zero-groups":
        return
    given = {**asdict(options), "select": select, "inherit": inherit}
    for name, default in _DEFAULTS.items():
        if given[name] != default:
            raise InvalidParameterError(
                "compress", name, 'left out with mode="zero-groups"', given[name],
                "That mode removes the units that are zero, no more and no fewer.",
            )  # fmt: skip


def _zero_plan(model: nn.Module, graph: ChannelGraph, drop: Mapping[str, list[int]]) -> WidthPlan:
    groups = []
    for group in graph.prunable:
        gone = Sparsity(len(drop.get(group.name, ())), group.size)
        width = group.size - gone.zeros
        groups.append(GroupPlan(group.name, group.size, width, gone, "units that are zero"))
    costs = Costs(model, graph)
    cost = costs.exact(np.array([group.width for group in groups], dtype=np.int64))
    return WidthPlan(
        tuple(groups), "zero-groups", 1.0, int(cost.macs), int(cost.params),
        int(costs.full.macs), int(costs.full.params),
    )  # fmt: skip


def _as_cut(
    slim: nn.Module, graph: ChannelGraph, planned: WidthPlan, drop: dict[str, list[int]]
) -> tuple[WidthPlan, dict[str, list[int]]]:
    """Plan and drop without the groups that ``prune`` left whole, of which it has warned."""
    kept = survivors(graph.labels, alive_labels(graph, drop))
    shapes = {name: tensor.shape for name, tensor in named_tensors(slim).items()}
    whole = {
        name
        for name in drop
        if all(
            shapes[tensor][dim] != len(kept[tensor][dim]) for tensor, dim, _ in graph[name].places
        )
    }
    if not whole:
        return planned, drop
    found = profile(slim, as_inputs(graph.arguments))
    groups = tuple(
        replace(group, width=group.size, driver="the model's code needs it whole")
        if group.name in whole
        else group
        for group in planned.groups
    )
    planned = replace(planned, groups=groups, macs=found.macs, params=found.params)
    return planned, {name: units for name, units in drop.items() if name not in whole}
