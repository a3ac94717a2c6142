"""Finds the widths that Python code holds, by cutting a double of the model and running it.

What breaks is mended in this order: a module attribute that holds the width is updated with it;
channels that the code takes for equal in number are tied; and else the group is frozen, with a
warning that names the module and the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from rsprune.shadow import Arguments
from rsprune.structure.check import Failure, suspects
from rsprune.structure.cut import Attribute, check_cut
from rsprune.structure.groups import ChannelGroup, form_groups
from rsprune.structure.labels import Frozen, LabelStore
from rsprune.structure.layout import Labels
from rsprune.structure.tracer import Record, TensorLabels

_ROUNDS = 100


@dataclass
class Settled:
    """The outcome: groups that can be cut, and the attributes to update."""

    groups: tuple[ChannelGroup, ...]
    root: Labels
    attributes: tuple[Attribute, ...]


@dataclass
class _Search:
    model: nn.Module
    records: Sequence[Record]
    store: LabelStore
    attributes: dict[tuple[int, int], list[Attribute]] = field(default_factory=dict)
    tried: set[object] = field(default_factory=set)


def settle(
    model: nn.Module,
    arguments: Arguments,
    labels: TensorLabels,
    records: Sequence[Record],
    store: LabelStore,
    *,
    real: bool,
) -> Settled:
    """Cut and mend until nothing breaks."""
    search = _Search(model, records, store)
    for round_ in range(_ROUNDS):
        root = store.roots()
        groups = form_groups(labels, root, store.frozen_roots(root))
        alive = _trial(groups, root, round_)
        attributes = [a for own in search.attributes.values() for a in own]
        failures = check_cut(
            model, arguments, labels, records, root, alive[root], attributes, real=real
        )
        if not failures:
            return Settled(groups, root, tuple(attributes))
        first = list({failure.module: failure for failure in reversed(failures)}.values())
        _withdraw(search, failures)
        patient = round_ < _ROUNDS // 2
        if not (patient and any([_mended(search, failure, root) for failure in first])):
            for failure in first:
                _freeze(store, failure, root, groups)
    raise AssertionError("every round freezes, ties or updates something, so there is an end")


def _trial(groups: Sequence[ChannelGroup], root: Labels, seed: int) -> Labels:
    """Some units of every group dropped, a different share of each; more than one stays.

    (A dimension of size 1 is broadcast and squeezed: its labels cannot be followed as well.)
    """
    generator = np.random.default_rng(seed)
    alive = np.ones(len(root), dtype=bool)
    for group in groups:
        if group.prunable and group.size > 2:
            count = int(generator.integers(1, group.size - 1))
            alive[generator.permutation(group.roots)[:count]] = False
    return alive


def _withdraw(search: _Search, failures: Sequence[Failure]) -> None:
    """Take back the updates that did not help."""
    for failure in failures:
        for attribute in search.attributes.pop((failure.record, failure.step), ()):
            search.tried.add(attribute)


def _mended(search: _Search, failure: Failure, root: Labels) -> bool:
    """Try an attribute or a tie that was not tried yet."""
    at = (failure.record, failure.step)
    for attribute in _holders(search, failure):
        if attribute not in search.tried:
            search.attributes[at] = [attribute]
            return True
    for a, b in _equals(failure):
        key = (*at, a.tobytes(), b.tobytes())
        if key not in search.tried and (root[a] != root[b]).any():
            search.tried.add(key)
            search.store.unite(a, b, Frozen(failure.name, failure.module, "equal widths"))
            search.tried -= {t for t in search.tried if isinstance(t, Attribute) and t[3:5] == at}
            return True
    return False


def _holders(search: _Search, failure: Failure) -> Iterator[Attribute]:
    """Attributes that hold a width which the operator was given and should not have been."""
    owner = failure.module
    wanted = {full for full in failure.widths if full in failure.numbers or not failure.numbers}
    while True:
        module = search.model.get_submodule(owner)
        for name, value in vars(module).items():
            if name.startswith("_") or name == "training":
                continue
            entries = list(enumerate(value)) if isinstance(value, list | tuple) else [(None, value)]
            for place, entry in entries:
                if type(entry) is int and entry in wanted:
                    output, dim = failure.sites[entry]
                    yield Attribute(
                        owner, name, place, failure.record, failure.step, output, dim
                    )
        if not owner:
            return
        owner = owner.rpartition(".")[0]


def _equals(failure: Failure) -> Iterator[tuple[Labels, Labels]]:
    """Channels of equal number that the code may take for the same number."""
    widths = set(failure.widths)
    for labels in [*failure.blamed, *failure.handled]:
        flat = labels.ravel()
        for size in widths:  # the halves of x[:, : c // 2]
            if flat.size % size == 0 and 1 < flat.size // size <= 4 and labels.ndim == 1:
                parts = flat.reshape(-1, size)
                yield parts[1:].ravel(), np.broadcast_to(parts[0], parts[1:].shape).ravel()
        for entered in failure.entered:  # a module's inside as wide as its input
            if entered.ndim == 1 and flat.size % entered.size == 0 and flat.size >= entered.size > 1:
                yield flat[: entered.size], entered


def _freeze(
    store: LabelStore, failure: Failure, root: Labels, groups: Sequence[ChannelGroup]
) -> None:
    """Freeze the groups that are the likeliest culprits."""
    culprits = suspects(failure, root, [group for group in groups if group.prunable])
    reason = f"the code holds a width ({failure.line}): {failure.message}"
    for group in culprits:
        store.freeze(group.roots, Frozen(failure.name, failure.module, reason))
