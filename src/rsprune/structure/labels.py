"""The labels of a model: one for every index of every dimension, united where they must agree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rsprune.structure.layout import Labels


class Frozen(NamedTuple):
    """Why some channels cannot be dropped.

    Attributes:
        operator: the operator that needs them whole.
        module: the module that ran it.
        reason: why.
    """

    operator: str
    module: str
    reason: str

    def __str__(self) -> str:
        where = f" in '{self.module}'" if self.module else ""
        return f"{self.operator}{where}: {self.reason}" if self.operator else self.reason


@dataclass
class LabelStore:
    """Hands out labels, and gathers what is found out about them."""

    count: int = 1  # label 0 is nobody's
    pairs: list[tuple[Labels, Labels]] = field(default_factory=list)
    frozen: list[tuple[Labels, Frozen]] = field(default_factory=list)
    grids: list[Labels] = field(default_factory=list)

    def fresh(self, size: int) -> Labels:
        """New labels."""
        self.count += size
        return np.arange(self.count - size, self.count)

    def unite(self, a: Labels, b: Labels, why: Frozen) -> None:
        """Index by index: the two live and die together. What meets label 0 is frozen."""
        if a is b:
            return
        a, b = np.broadcast_arrays(a, b)
        a, b = a.ravel(), b.ravel()
        alone = (a == 0) | (b == 0)
        if alone.any():
            self.freeze((a + b)[alone], why)
            a, b = a[~alone], b[~alone]
        self.pairs.append((a, b))

    def tie(self, labels: Labels, axis: int, why: Frozen) -> None:
        """Unite along one axis of an array."""
        if labels.shape[axis] > 1:
            self.unite(labels, labels.take([0], axis), why)

    def freeze(self, labels: Labels, why: Frozen) -> None:
        """Never drop these."""
        labels = labels[labels != 0]
        if labels.size:
            self.frozen.append((labels, why))

    def grid(self, labels: Labels) -> None:
        """What survives of this array must be a grid: some rows times some columns."""
        self.grids.append(labels)

    def roots(self) -> Labels:
        """The representative of every label, after all that was said about them."""
        pairs = list(self.pairs)
        root = components(self.count, pairs)
        grids = _distinct(self.grids)
        while ties := [pair for labels in grids for pair in _grid_ties(labels, root)]:
            pairs.extend(ties)
            root = components(self.count, pairs)
        return root

    def frozen_roots(self, root: Labels) -> dict[int, Frozen]:
        """The first reason for which each frozen representative is frozen."""
        reasons: dict[int, Frozen] = {}
        for labels, why in self.frozen:
            for representative in np.unique(root[labels]).tolist():
                reasons.setdefault(representative, why)
        return reasons


def components(count: int, pairs: list[tuple[Labels, Labels]]) -> Labels:
    """The smallest label of every connected component, for each of ``count`` labels."""
    root = np.arange(count)
    if not pairs:
        return root
    a = np.concatenate([pair[0] for pair in pairs])
    b = np.concatenate([pair[1] for pair in pairs])
    while a.size:
        root_a, root_b = root[a], root[b]
        apart = root_a != root_b
        a, b, root_a, root_b = a[apart], b[apart], root_a[apart], root_b[apart]
        root[np.maximum(root_a, root_b)] = np.minimum(root_a, root_b)
        while True:  # point every label at its representative
            above = root[root]
            if (above == root).all():
                break
            root = above
    return root


def _grid_ties(labels: Labels, root: Labels) -> list[tuple[Labels, Labels]]:
    """What must be united so that any survivors form a grid; nothing if they do already.

    They do if the representatives differ along one axis only. Otherwise the last axis along which
    they differ is the one to drop from, as in a grouped convolution, where a unit is one channel of
    every group.
    """
    found = root[labels]
    varying = [axis for axis in range(found.ndim) if (found != found.take([0], axis)).any()]
    flat = found.ravel()
    firsts = [np.broadcast_to(found.take([0], axis), found.shape) for axis in varying[:-1]]
    return [(flat, first.ravel()) for first in firsts]


def _distinct(arrays: list[Labels]) -> list[Labels]:
    return list({(array.shape, array.tobytes()): array for array in arrays}.values())
