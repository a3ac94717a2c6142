"""``rsprune.prune``: a new, smaller model without the dropped units."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import nn

from rsprune.errors import InvalidParameterError, RsPruneWarning, TraceError
from rsprune.shadow import check_model, named_tensors
from rsprune.structure.check import NUMBER, Failure, explicable, suspects
from rsprune.structure.cut import (
    Traced,
    attribute_values,
    check_cut,
    cut_model,
    cut_optimizer,
    same_in_numbers,
    survivors,
)
from rsprune.structure.groups import ChannelGraph, ChannelGroup
from rsprune.structure.layout import Labels

Drop = Mapping[str, Iterable[int]]


def prune(
    model: nn.Module,
    graph: ChannelGraph,
    drop: Drop,
    *,
    optimizer: torch.optim.Optimizer | None = None,
) -> nn.Module:
    """A new model without some units; ``model`` is left as it was.

    Args:
        model: the model that was traced.
        graph: what :func:`rsprune.trace` found out about it.
        drop: for each group to be cut, by name, the units to drop. At least one unit must stay.
        optimizer: an optimizer of the model's parameters. What it remembers is cut along with them,
            and it goes on with the new model's parameters.
    """
    check_model("prune", model)
    check_graph("prune", model, graph)
    units = checked_drop("prune", graph, drop)
    check_optimizer("prune", model, optimizer)
    alive = alive_labels(graph, units)
    while failures := _failures(model, graph, alive):
        if not units:
            raise TraceError(f"The model does not run twice alike: {failures[0]}")
        cut = [graph[name] for name in units]
        names = [group.name for group in suspects(failures[0], graph.root, cut)]
        warnings.warn(
            f"{', '.join(names)}: left whole, because with these units dropped the model does not "
            f"run as before: {failures[0]}",
            RsPruneWarning,
            stacklevel=2,
        )
        units = {name: own for name, own in units.items() if name not in names}
        alive = alive_labels(graph, units)
    kept = survivors(graph.labels, alive)
    slim = cut_model(model, kept, attribute_values(graph.attributes, graph.records, alive))
    if optimizer is not None:
        cut_optimizer(optimizer, model, slim, kept)
    return slim


def _failures(model: nn.Module, graph: ChannelGraph, alive: Labels) -> list[Failure]:
    traced = Traced(model, graph.arguments, graph.labels, graph.records, graph.real)
    if all(record.agnostic for record in graph.records):
        return []  # no code could hold a width
    if graph.real and not same_in_numbers(traced, alive, graph.attributes):
        return [Failure(0, 0, "forward", "", "", NUMBER)]  # code that looks at values
    failures = check_cut(traced, graph.root, alive, graph.attributes)
    if failures and explicable(failures) and same_in_numbers(traced, alive, graph.attributes):
        return []
    return failures


def check_optimizer(owner: str, model: nn.Module, optimizer: object) -> None:
    """Refuse what is no optimizer of this model."""
    if optimizer is None:
        return
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidParameterError(
            owner, "optimizer", "a torch.optim.Optimizer or None", optimizer,
            "Pass the optimizer that trains the model.",
        )  # fmt: skip
    own = set(model.parameters())
    if not any(p in own for group in optimizer.param_groups for p in group["params"]):
        raise InvalidParameterError(
            owner, "optimizer", "one that trains the model", type(optimizer).__name__,
            "None of its parameters are the model's.",
        )  # fmt: skip


def alive_labels(graph: ChannelGraph, units: Mapping[str, list[int]]) -> Labels:
    """For every label of the graph, whether it stays."""
    alive = np.ones(len(graph.root), dtype=bool)
    for name, own in units.items():
        alive[graph[name].roots[own]] = False
    return alive[graph.root]


def check_graph(owner: str, model: nn.Module, graph: ChannelGraph) -> None:
    """Refuse a graph that is not of this model."""
    if not isinstance(graph, ChannelGraph):
        raise InvalidParameterError(
            owner, "graph", "what rsprune.trace returns", type(graph).__name__,
            "Call graph = rsprune.trace(model, example_inputs) first.",
        )  # fmt: skip
    shapes = {name: tuple(t.shape) for name, t in named_tensors(model).items()}
    if shapes != dict(graph.shapes):
        odd = next(
            name for name in [*shapes, *graph.shapes] if shapes.get(name) != graph.shapes.get(name)
        )
        raise InvalidParameterError(
            owner, "graph", "the graph of this model",
            f"one in which '{odd}' is {graph.shapes.get(odd)}, here it is {shapes.get(odd)}",
            "Trace the model again.",
        )  # fmt: skip


def checked_drop(owner: str, graph: ChannelGraph, drop: Drop) -> dict[str, list[int]]:
    """``drop`` with its names and units checked; groups that must stay whole are left out."""
    if not isinstance(drop, Mapping):
        raise InvalidParameterError(
            owner, "drop", "a dict of group names and lists of units", drop,
            'For example {graph.groups[0].name: [0, 3]}.',
        )  # fmt: skip
    known = {group.name: group for group in graph.groups}
    found: dict[str, list[int]] = {}
    for name, units in drop.items():
        if name not in known:
            hint = graph.hint(str(name))
            raise InvalidParameterError(owner, "drop", "keyed by names of graph.groups", name, hint)
        own = _checked_units(owner, known[name], units)
        if own and not known[name].prunable:
            warnings.warn(f"{name}: left whole: {known[name].reason}", RsPruneWarning, stacklevel=3)
        elif own:
            found[name] = own
    return found


def _checked_units(owner: str, group: ChannelGroup, units: Iterable[int]) -> list[int]:
    where = f"drop['{group.name}']"
    if not isinstance(units, Iterable) or isinstance(units, str):
        raise InvalidParameterError(
            owner, where, "a list of units", units, "For one unit, pass a list of it: [3]."
        )
    found = list(units.tolist() if isinstance(units, torch.Tensor) else units)
    found = [unit.item() if isinstance(unit, torch.Tensor) else unit for unit in found]
    for unit in found:
        if (
            not isinstance(unit, int | np.integer)
            or isinstance(unit, bool)
            or not 0 <= unit < group.size
        ):
            raise InvalidParameterError(
                owner, where, f"a list of whole numbers from 0 to {group.size - 1}", unit,
                f"The group has {group.size} units.",
            )  # fmt: skip
    if len(set(found)) != len(found):
        raise InvalidParameterError(
            owner, where, "a list of different units", found, "Name each of them once."
        )
    if len(found) == group.size:
        raise InvalidParameterError(
            owner, where, "a list that leaves at least one unit", f"all {group.size} units",
            "To take a whole branch out, change the model's code.",
        )  # fmt: skip
    return [int(unit) for unit in found]
