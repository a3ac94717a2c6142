"""Channels that live and die together, as the user sees them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rsprune.errors import InvalidParameterError
from rsprune.structure.blocks import ForkJoin, find_blocks
from rsprune.structure.labels import Frozen
from rsprune.structure.layout import Labels
from rsprune.structure.tracer import Record, TensorLabels


class Slot(NamedTuple):
    """Where the units of a group lie in one dimension of one parameter or buffer.

    ``positions[u]`` lists the indices along ``dim`` that unit ``u`` owns.
    """

    tensor: str
    dim: int
    positions: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class ChannelGroup:
    """Units that have the same slots; any of them may be dropped as long as one stays.

    Attributes:
        name: the module that makes these channels.
        size: the number of units.
        prunable: whether units may be dropped.
        reason: why not.
    """

    name: str
    size: int
    prunable: bool
    reason: str
    roots: Labels = field(repr=False)  # (size,)
    places: tuple[tuple[str, int, Labels], ...] = field(repr=False)  # tensor, dim, (size, count)

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Where the units lie."""
        return tuple(
            Slot(tensor, dim, tuple(map(tuple, positions.tolist())))
            for tensor, dim, positions in self.places
        )

    def __str__(self) -> str:
        where = ", ".join(f"{tensor}[{dim}]" for tensor, dim, _ in self.places)
        return f"{self.name}: {self.size} units in {where}"


@dataclass(frozen=True, eq=False)
class ChannelGraph:
    """What :func:`rsprune.trace` found out about a model.

    Attributes:
        groups: all groups of channels, those that must stay whole included.
        frozen: what keeps channels from being dropped.
        statistics: modules whose normalisation statistics run over channels that can be dropped.
            The statistics of fewer channels are others, so there a pruned model is not equal to the
            full one with zeros.
    """

    groups: tuple[ChannelGroup, ...]
    frozen: tuple[Frozen, ...]
    statistics: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)
    labels: TensorLabels = field(repr=False)
    root: Labels = field(repr=False)
    records: tuple[Record, ...] = field(repr=False)
    arguments: Any = field(repr=False)
    real: bool = field(repr=False)
    attributes: tuple[Any, ...] = field(repr=False)

    def __getitem__(self, name: str) -> ChannelGroup:
        """The group of that name."""
        if name not in self._by_name:
            raise InvalidParameterError(
                "ChannelGraph", "name", "the name of a group", name, self.hint(name)
            )
        return self._by_name[name]

    def hint(self, name: str) -> str:
        """Which group was meant by a name that is none."""
        owners = [
            group.name
            for group in self.groups
            if any(d == 0 and tensor.rpartition(".")[0] == name for tensor, d, _ in group.places)
        ]
        if owners:
            return f"The channels of {name!r} are in the group {owners[0]!r}."
        close = difflib.get_close_matches(name, self._by_name, n=3)
        return f"Did you mean {' or '.join(map(repr, close))}?" if close else ""

    @cached_property
    def _by_name(self) -> dict[str, ChannelGroup]:
        return {group.name: group for group in self.groups}

    @property
    def prunable(self) -> tuple[ChannelGroup, ...]:
        """The groups from which units may be dropped."""
        return tuple(group for group in self.groups if group.prunable)

    @cached_property
    def blocks(self) -> tuple[ForkJoin, ...]:
        """The regions in which the model forks and joins again, such as residual blocks."""
        slots = {g.name: frozenset(tensor for tensor, _, _ in g.places) for g in self.prunable}
        return find_blocks(self.records[0], slots)

    def __str__(self) -> str:
        rows = [("group", "units", "slots", "")]
        rows += [(g.name, str(g.size), str(len(g.places)), g.reason) for g in self.groups]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [
            f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}  {d}".rstrip()
            for a, b, c, d in rows
        ]
        units = sum(group.size for group in self.prunable)
        lines.append(
            f"{len(self.prunable)} of {len(self.groups)} groups can be pruned, {units} units"
        )
        if self.statistics:
            lines.append(f"statistics over channels: {', '.join(self.statistics)}")
        return "\n".join(lines)


def form_groups(
    labels: TensorLabels, root: Labels, reasons: Mapping[int, Frozen]
) -> tuple[ChannelGroup, ...]:
    """Gather the units: representatives that lie in the same places, equally often."""
    places = [(name, dim, own) for name, dims in labels.items() for dim, own in dims.items()]
    if not places:
        return ()
    roots = np.concatenate([root[own] for _, _, own in places])
    slot = np.repeat(np.arange(len(places)), [len(own) for _, _, own in places])
    position = np.concatenate([np.arange(len(own)) for _, _, own in places])
    order = np.lexsort((position, slot, roots))
    roots, slot, position = roots[order], slot[order], position[order]
    units, start = np.unique(roots, return_index=True)
    stop = np.append(start[1:], len(roots))
    members: dict[tuple[bytes, Frozen | None], list[int]] = {}
    for u, (a, b) in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
        signature = (slot[a:b].tobytes(), reasons.get(int(units[u])))
        members.setdefault(signature, []).append(u)
    taken: dict[str, int] = {}
    groups = []
    for (_, why), own in members.items():
        rows = np.arange(stop[own[0]] - start[own[0]]) + start[own][:, None]
        found = [
            (*places[s][:2], position[rows[:, columns]]) for s, columns in _columns(slot[rows[0]])
        ]
        in_order = np.argsort(found[0][2][:, 0], kind="stable")
        found = [(name, dim, where[in_order]) for name, dim, where in found]
        reason = str(why) if why else ("has one unit only" if len(own) == 1 else "")
        groups.append(
            ChannelGroup(
                _unique(_name(found, labels), taken),
                len(own),
                not reason,
                reason,
                units[own][in_order],
                tuple(found),
            )
        )
    return tuple(groups)


def _columns(slots: Labels) -> list[tuple[int, slice]]:
    """The runs of equal slots."""
    values, start = np.unique(slots, return_index=True)
    stop = [*start[1:].tolist(), len(slots)]
    return [
        (value, slice(a, b))
        for value, a, b in zip(values.tolist(), start.tolist(), stop, strict=True)
    ]


def _name(places: list[tuple[str, int, Labels]], labels: TensorLabels) -> str:
    """A group is named after the layer that makes its channels: the first one cut along dim 0."""
    for tensor, dim, _ in places:
        if dim == 0 and len(labels[tensor]) > 1:
            return tensor.rpartition(".")[0] or tensor
    tensor, dim, _ = places[0]
    return tensor.rpartition(".")[0] or tensor if dim == 0 else f"{tensor}[{dim}]"


def _unique(name: str, taken: dict[str, int]) -> str:
    taken[name] = taken.get(name, 0) + 1
    return name if taken[name] == 1 else f"{name}#{taken[name]}"
