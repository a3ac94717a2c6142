"""Every net of the gauntlet is pruned exactly, or the engine says by name what it cannot prune."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import rsprune
from rsprune.structure.groups import ChannelGraph, ChannelGroup
from tests.gauntlet import ENTRIES, Entry
from tests.surgery import (
    TOLERANCE,
    Drop,
    all_but_one,
    difference,
    evaluate,
    expected_shapes,
    half_drop,
    randomise,
    tensors_in,
    tensors_of,
    train_once,
    uneven_drop,
    zeroed,
)

SEEDS = (0, 1, 2)
LITERAL = "# the literal width"  # marks the line that a warning has to name
nets = pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))


class Traced(NamedTuple):
    """A net of the gauntlet after ``trace``; its weights change from test to test."""

    model: nn.Module
    inputs: Any
    graph: ChannelGraph
    warnings: list[str]


@functools.cache
def traced(name: str) -> Traced:
    """Trace an entry once for all tests."""
    entry = ENTRIES[name]
    model = randomise(entry.make(), 0)
    inputs = entry.inputs(torch.Generator().manual_seed(0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error")
        warnings.simplefilter("always", rsprune.RsPruneWarning)
        _ignore(entry)
        graph = rsprune.trace(model, inputs)
    return Traced(model, inputs, graph, [str(w.message) for w in caught])


def _ignore(entry: Entry) -> None:
    if entry.ignore:
        warnings.filterwarnings("ignore", message=entry.ignore)


def holding(
    graph: ChannelGraph, model: nn.Module, layer: str, *, prunable: bool = True
) -> list[ChannelGroup]:
    """The groups that can, or cannot, be pruned and hold a layer, written as in the gauntlet."""
    name, _, dim = layer.partition(":")
    tensors = tensors_of(model)
    original = tensors[name if name in tensors else f"{name}.weight"]
    aliases = {other for other, tensor in tensors.items() if tensor is original}
    return [
        group
        for group in graph.groups
        if group.prunable == prunable
        and any(slot.tensor in aliases and slot.dim == int(dim or 0) for slot in group.slots)
    ]


@nets
def test_what_has_to_be_prunable_is(entry: Entry) -> None:
    model, _, graph, _ = traced(entry.name)
    missing = [layer for layer in entry.prunable if not holding(graph, model, layer)]
    assert not missing, f"frozen: {graph.frozen}\n{graph}"


@nets
def test_what_cannot_be_prunable_is_frozen_by_name(entry: Entry) -> None:
    model, _, graph, _ = traced(entry.name)
    blamed = [frozen.operator.lower() for frozen in graph.frozen]
    for layer, operator in entry.frozen:
        assert not holding(graph, model, layer), graph
        assert not operator or any(operator in name for name in blamed), blamed


@nets
def test_what_may_be_either_is_prunable_or_explained(entry: Entry) -> None:
    """A layer is kept whole for a reason that is among those of the graph."""
    model, _, graph, _ = traced(entry.name)
    reasons = {"has one unit only", *(str(frozen) for frozen in graph.frozen)}
    for layer in entry.either:
        if not holding(graph, model, layer):
            kept = holding(graph, model, layer, prunable=False)
            assert kept
            assert all(group.reason in reasons for group in kept)


@nets
def test_groups_are_well_formed(entry: Entry) -> None:
    """Names are unique, slots exist, and no index belongs to two units."""
    model, _, graph, _ = traced(entry.name)
    assert len({group.name for group in graph.groups}) == len(graph.groups)
    tensors = tensors_of(model)
    owners: set[tuple[str, int, int]] = set()
    for group in graph.groups:
        assert bool(group.reason) != group.prunable
        assert group.slots
        for tensor, dim, positions in group.slots:
            assert len(positions) == group.size
            indices = [(tensor, dim, index) for unit in positions for index in unit]
            assert all(0 <= index < tensors[tensor].shape[dim] for *_, index in indices)
            assert len(set(indices)) == len(indices)
            assert owners.isdisjoint(indices)
            owners.update(indices)


@nets
def test_warnings_are_for_literal_widths(entry: Entry) -> None:
    """A net without literal widths is silent; a literal is named by module, file and line."""
    _, _, _, messages = traced(entry.name)
    assert entry.literal or not messages, messages
    if entry.warns:
        module = traced(entry.name).model.get_submodule(entry.warns)
        lines, first = inspect.getsourcelines(type(module).forward)
        line = first + next(i for i, text in enumerate(lines) if LITERAL in text)
        place = f"literals.py:{line}"
        assert any(place in text and entry.warns in text for text in messages), messages


def check(entry: Entry, drop_of: Callable[[ChannelGraph, int], Drop], seed: int) -> None:
    """Prune, compare with the zeroed model, and train."""
    model, inputs, graph, _ = traced(entry.name)
    randomise(model, seed)
    drop = drop_of(graph, seed)
    with warnings.catch_warnings():
        _ignore(entry)
        slim = rsprune.prune(model, graph, drop=drop)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors_of(slim).items()}
        assert shapes == expected_shapes(model, graph, drop)
        output = evaluate(slim, inputs)
        reference = evaluate(zeroed(model, graph, drop), inputs)
        if entry.statistics and graph.statistics:
            same = zip(tensors_in(output), tensors_in(reference), strict=True)
            assert all(a.shape == b.shape and a.isfinite().all() for a, b in same)
        else:
            assert difference(output, reference) <= TOLERANCE
        train_once(slim, inputs)


@nets
def test_what_was_cut_is_saved_and_loaded(entry: Entry, tmp_path: Path) -> None:
    """Widths outlive the file, also those that no parameter shows."""
    model, inputs, graph, _ = traced(entry.name)
    with warnings.catch_warnings():
        _ignore(entry)
        slim = rsprune.prune(model, graph, drop=half_drop(graph, 0))
        rsprune.save(slim, tmp_path / "slim.safetensors")
        again = rsprune.load(model, tmp_path / "slim.safetensors")
        assert difference(evaluate(again, inputs), evaluate(slim, inputs)) <= TOLERANCE


@nets
@pytest.mark.parametrize("seed", SEEDS)
def test_half_of_every_group(entry: Entry, seed: int) -> None:
    check(entry, half_drop, seed)


@nets
@pytest.mark.parametrize("seed", SEEDS)
def test_uneven_drops(entry: Entry, seed: int) -> None:
    check(entry, uneven_drop, seed)


@nets
def test_all_but_one_unit_of_every_group(entry: Entry) -> None:
    check(entry, all_but_one, 0)


@nets
def test_each_group_alone(entry: Entry) -> None:
    """Nothing that breaks in one group may be mended by a drop in another."""
    graph = traced(entry.name).graph
    for seed, group in enumerate(group for group in graph.groups if group.prunable):
        check(entry, lambda g, s, name=group.name: {name: uneven_drop(g, s).get(name, [0])}, seed)


class SqueezesAll(nn.Module):
    """Of a single channel, ``squeeze`` would take the channel dimension too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).squeeze())


def test_one_drop_too_far_is_refused_with_a_warning() -> None:
    """Where only some drops break the model's code, these leave their group whole."""
    model = randomise(SqueezesAll(), 0)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    graph = rsprune.trace(model, x)
    drop = half_drop(graph, 0)
    slim = rsprune.prune(model, graph, drop=drop)
    assert difference(evaluate(slim, x), evaluate(zeroed(model, graph, drop), x)) <= TOLERANCE
    with pytest.warns(rsprune.RsPruneWarning, match=r"conv.*squeeze"):
        whole = rsprune.prune(model, graph, drop=all_but_one(graph, 0))
    assert difference(evaluate(whole, x), evaluate(model, x)) <= TOLERANCE


@nets
def test_only_statistics_over_channels_are_noted(entry: Entry) -> None:
    assert entry.statistics or not traced(entry.name).graph.statistics


@nets
def test_verify_agrees(entry: Entry) -> None:
    """Also with norms over channels, which ``verify`` reduces to their scales and shifts."""
    model, inputs, graph, _ = traced(entry.name)
    randomise(model, 3)
    drop = half_drop(graph, 3)
    with warnings.catch_warnings():
        _ignore(entry)
        slim = rsprune.prune(model, graph, drop=drop)
        assert rsprune.verify(model, slim, graph, drop, inputs) <= TOLERANCE


@nets
def test_dropping_matters(entry: Entry) -> None:
    """The net is a test of something: zeroing units changes what it computes."""
    model, inputs, graph, _ = traced(entry.name)
    randomise(model, 0)
    drop = half_drop(graph, 0)
    with warnings.catch_warnings():
        _ignore(entry)
        zeros, whole = evaluate(zeroed(model, graph, drop), inputs), evaluate(model, inputs)
    assert not drop or difference(zeros, whole) > 1e-6
