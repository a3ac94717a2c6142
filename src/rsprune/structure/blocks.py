"""Fork-join regions: where a model's data splits into branches and meets again.

A step dominates another if every path from the inputs to that one leads through it. Where branches
join, the nearest dominator is the step at which they forked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from rsprune.structure.tracer import Record

_JOINS = {"add", "add_", "sub", "mul", "mul_", "cat", "stack", "maximum"}


@dataclass(frozen=True)
class ForkJoin:
    """A region between a fork and a join.

    Attributes:
        name: the module that holds all of it.
        operator: the operator that joins the branches: ``add`` in a residual block.
        tensors: the parameters and buffers inside.
        inner: the groups that lie inside alone, whose widths are the block's own.
        outer: the groups that the block shares with others.
    """

    name: str
    operator: str
    tensors: frozenset[str]
    inner: tuple[str, ...]
    outer: tuple[str, ...]


def find_blocks(record: Record, groups: Mapping[str, frozenset[str]]) -> tuple[ForkJoin, ...]:
    """All fork-join regions of a run that have parameters inside, in the order of their joins."""
    above = dominators(record)
    found = []
    for at, step in enumerate(record.steps):
        if step.name in _JOINS and len(step.flow.steps) > 1:
            inside = _between(record, above[at], at)
            tensors = frozenset[str]().union(*(record.steps[i].flow.tensors for i in inside))
            if tensors:
                found.append(_block(step.name.rstrip("_"), tensors, groups))
    return tuple(found)


def dominators(record: Record) -> dict[int, int]:
    """The nearest dominator of every step; -1 stands for the inputs."""
    above: dict[int, int] = {}
    depth = {-1: 0}
    for at, step in enumerate(record.steps):
        sources = list(step.flow.steps)
        if not sources:
            continue  # made of parameters alone
        common = sources[0]
        for other in sources[1:]:
            while common != other:
                if depth[common] >= depth[other]:
                    common = above[common]
                else:
                    other = above[other]
        above[at] = common
        depth[at] = depth[common] + 1
    return above


def _between(record: Record, fork: int, join: int) -> set[int]:
    """The steps on the paths from a fork to its join."""
    found: set[int] = set()
    front = [join]
    while front:
        for source in record.steps[front.pop()].flow.steps:
            if source != fork and source not in found:
                found.add(source)
                front.append(source)
    return found


def _block(
    operator: str, tensors: frozenset[str], groups: Mapping[str, frozenset[str]]
) -> ForkJoin:
    modules = [name.split(".")[:-1] for name in tensors]
    same = takewhile(lambda parts: len(set(parts)) == 1, zip(*modules, strict=False))
    name = ".".join(parts[0] for parts in same)
    touched = [group for group, slots in groups.items() if slots & tensors]
    inner = tuple(group for group in touched if groups[group] <= tensors)
    return ForkJoin(
        name, operator, tensors, inner, tuple(group for group in touched if group not in inner)
    )
