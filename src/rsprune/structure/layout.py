"""Which labels lie along the dimensions of a tensor, and how they move when the tensor is reshaped.

A label stands for one index of one dimension of a parameter or buffer; 0 stands for an index that
belongs to none and can never be dropped. A block holds the labels of one dimension or, after a
dimension was split by a view, of several dimensions together: a channel shuffle (view, transpose,
view) thus comes out as the permutation it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]


class Block(NamedTuple):
    """The labels of one or several dimensions of a tensor.

    Attributes:
        dims: the dimensions, ascending.
        labels: one axis for each of them.
        zero: whether the tensor is exactly zero at units that are set to zero.
    """

    dims: tuple[int, ...]
    labels: Labels
    zero: bool = False


class Layout(NamedTuple):
    """The blocks of a tensor, no two of which share a dimension.

    ``free`` dimensions have no labels and no fixed size either: their indices are all alike (a
    constant, fresh noise, an expanded dimension), so they fit whatever they meet.
    """

    blocks: tuple[Block, ...] = ()
    free: frozenset[int] = frozenset()

    def at(self, dim: int) -> Block | None:
        """The block that ``dim`` belongs to."""
        return next((block for block in self.blocks if dim in block.dims), None)

    def without(self, dropped: Block | None) -> Layout:
        """The same without one block."""
        return self._replace(blocks=tuple(b for b in self.blocks if b is not dropped))

    def with_zero(self, zero: bool) -> Layout:
        """The same, zero only where it was and ``zero`` is true."""
        if zero or not any(block.zero for block in self.blocks):
            return self
        return self._replace(blocks=tuple(block._replace(zero=False) for block in self.blocks))

    def moved(self, to: dict[int, int]) -> Layout:
        """The layout after dimension ``d`` became dimension ``to[d]``."""
        blocks = []
        for block in self.blocks:
            dims = [to[d] for d in block.dims]
            order = np.argsort(dims)
            labels = block.labels.transpose(order) if len(dims) > 1 else block.labels
            blocks.append(Block(tuple(sorted(dims)), labels, block.zero))
        return Layout(tuple(blocks), frozenset(to[d] for d in self.free if d in to))


NOTHING = Layout()


def spread(block: Block, dims: Sequence[int], shape: Sequence[int]) -> Labels:
    """The labels of ``block`` as an array over ``dims``, which contain the block's own."""
    if tuple(dims) == block.dims:
        return block.labels
    sizes = [block.labels.shape[block.dims.index(d)] if d in block.dims else 1 for d in dims]
    return np.broadcast_to(block.labels.reshape(sizes), [shape[d] for d in dims])


def first_along(labels: Labels, axis: int) -> Labels:
    """The labels at index 0 of an axis, without it."""
    return labels[(slice(None),) * axis + (0,)]


def compact(dims: Sequence[int], labels: Labels, zero: bool) -> Block | None:
    """A block over those of ``dims`` along which the labels differ; None if there are none."""
    kept = []
    for axis, dim in enumerate(dims):
        first = labels.take([0], axis)
        if labels.shape[axis] > 1 and not bool((labels == first).all()):
            kept.append(dim)
    if not kept:
        if not labels.any():
            return None
        # one label all along: it still has to be known, so keep the longest dimension
        kept = [max(dims, key=lambda d: labels.shape[list(dims).index(d)])]
    for axis, dim in reversed(list(enumerate(dims))):
        if dim not in kept:
            labels = first_along(labels, axis)
    return Block(tuple(kept), np.ascontiguousarray(labels), zero)


def segments(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Match the dimensions of two shapes of equal size: the smallest runs with equal products.

    Dimensions of size 1 carry nothing and are left out.
    """
    left = [d for d, size in enumerate(old) if size != 1]
    right = [d for d, size in enumerate(new) if size != 1]
    found: list[tuple[list[int], list[int]]] = []
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        size_a, size_b = old[a[0]], new[b[0]]
        while size_a != size_b:
            if size_a < size_b:
                a.append(left.pop(0))
                size_a *= old[a[-1]]
            else:
                b.append(right.pop(0))
                size_b *= new[b[-1]]
        found.append((a, b))
    return found


def merged(sets: Iterable[Iterable[int]]) -> list[set[int]]:
    """Join sets that overlap until none do."""
    result: list[set[int]] = []
    for entry in sets:
        new = set(entry)
        apart = []
        for other in result:
            if other & new:
                new |= other
            else:
                apart.append(other)
        result = [*apart, new]
    return result
