"""Operators that pick, split and join along a dimension: the labels do what the data does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from rsprune.shadow import tensors_among
from rsprune.structure.layout import Block, Layout
from rsprune.structure.rules.pointwise import elementwise, every
from rsprune.structure.rules.reduce import mixed
from rsprune.structure.rules.registry import Call, rule


def _taken(call: Call, layout: Layout, dim: int, index: slice) -> Layout:
    """The layout of a slice along ``dim``."""
    block = layout.at(dim)
    if block is None:
        return layout
    axis = block.dims.index(dim)
    labels = block.labels[(slice(None),) * axis + (index,)]
    if labels.shape[axis] == 1 and len(block.dims) == 1:
        call.freeze(block, "picks one channel by its number")
    elif labels.shape[axis] == 1:
        call.tie(block.labels, axis)
    new = block._replace(labels=labels)
    return layout._replace(blocks=tuple(new if b is block else b for b in layout.blocks))


def _selected(call: Call, layout: Layout, dim: int, index: int) -> Layout:
    """The layout of one index of ``dim``, whose place must not change."""
    block = layout.at(dim)
    rest = layout.without(block)
    if block is not None and len(block.dims) == 1:
        call.freeze(block, "picks one channel by its number")
    elif block is not None:
        axis = block.dims.index(dim)
        call.tie(block.labels, axis)
        dims = tuple(d for d in block.dims if d != dim)
        rest = rest._replace(
            blocks=(
                *rest.blocks,
                Block(dims, block.labels.take([index], axis).squeeze(axis), block.zero),
            )
        )
    highest = max([d for b in rest.blocks for d in b.dims] + list(rest.free) + [dim])
    to = {d: d - (d > dim) for d in range(highest + 1) if d != dim}
    return rest.moved(to)


@rule("slice")
def slice_(call: Call) -> None:
    """A range of indices."""
    x = call.args[0]
    dim = call.argument(1, "dim", 0) % x.dim()
    start, stop, step = (
        call.argument(2, "start"), call.argument(3, "end"), call.argument(4, "step", 1),
    )  # fmt: skip
    whole = range(*slice(start, stop, step).indices(x.shape[dim]))
    index = slice(whole.start, whole.stop, whole.step)
    call.write(call.out, _taken(call, call.read(x), dim, index))


@rule("select")
def select(call: Call) -> None:
    """One index."""
    x, dim, index = call.args[:3]
    dim %= x.dim()
    call.write(call.out, _selected(call, call.read(x), dim, index))


@rule("unbind")
def unbind(call: Call) -> None:
    """Every index on its own."""
    x = call.args[0]
    dim = call.argument(1, "dim", 0) % x.dim()
    for index, part in enumerate(call.out):
        call.write(part, _selected(call, call.read(x), dim, index))


@rule(
    "split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes"
)
def split(call: Call) -> None:
    """Consecutive parts. Equal parts stay equal: index i of every part is one unit."""
    x = call.args[0]
    dim = call.argument(2, "dim", 0) % x.dim()
    layout = call.read(x)
    sizes = [part.shape[dim] for part in call.out]
    equal = len(set(sizes)) == 1
    block = layout.at(dim)
    if block is not None and not equal and isinstance(call.args[1], int):
        call.freeze(block, "is split into parts of different sizes")
    if block is not None and equal and sizes[0] > 1 and len(sizes) > 1:
        axis = block.dims.index(dim)
        shape = block.labels.shape
        parts = block.labels.reshape(*shape[:axis], len(sizes), sizes[0], *shape[axis + 1 :])
        call.tie(parts, axis)
    start = 0
    for part, size in zip(call.out, sizes, strict=True):
        call.write(part, _taken(call, layout, dim, slice(start, start + size)))
        start += size


@rule("cat", "concat")
def cat(call: Call) -> None:
    """Parts one after the other."""
    tensors = [t for t in call.args[0] if not (t.dim() == 1 and t.shape[0] == 0)]
    dim = call.argument(1, "dim", 0) % call.out.dim()
    call.write(call.out, joined(call, tensors, dim))


def joined(call: Call, tensors: Sequence[Tensor], dim: int) -> Layout:
    """The layout of tensors joined along ``dim``."""
    layouts = [call.read(t) for t in tensors]
    own = [layout.at(dim) for layout in layouts]
    if any(block is not None and len(block.dims) > 1 for block in own):
        return _joined_split(call, layouts, own, dim)
    shape = [1 if d == dim else size for d, size in enumerate(call.out.shape)]
    rest = [(shape, layout.without(block)) for layout, block in zip(layouts, own, strict=True)]
    result = elementwise(call, shape, rest, every) if len(rest) > 1 else rest[0][1]
    result = result._replace(free=result.free - {dim})
    if all(block is None for block in own):
        return result
    parts = [
        np.zeros(t.shape[dim], dtype=np.int64) if block is None else block.labels
        for t, block in zip(tensors, own, strict=True)
    ]
    zero = all(block.zero for block in own if block is not None)
    block = Block((dim,), np.concatenate(parts), zero)
    return result._replace(blocks=(*result.blocks, block))


def _joined_split(call: Call, layouts: list[Layout], own: list[Block | None], dim: int) -> Layout:
    """Joined along a dimension that was split off another: exact if all were split alike."""
    first = next(block for block in own if block is not None)
    alike = all(block is not None and block.dims == first.dims for block in own)
    rest = [layout.without(block) for layout, block in zip(layouts, own, strict=True)]
    if not alike or any(layout.blocks for layout in rest):
        for layout in layouts:
            call.freeze(layout, "joins dimensions that were split differently")
        return Layout()
    axis = first.dims.index(dim)
    labels = np.concatenate([block.labels for block in own if block is not None], axis)
    call.store.grid(labels)
    return Layout((Block(first.dims, labels, all(b.zero for b in own if b is not None)),))


@rule("stack")
def stack(call: Call) -> None:
    """Joined along a new dimension."""
    tensors = call.args[0]
    dim = call.argument(1, "dim", 0) % call.out.dim()
    shape = tensors[0].shape
    layout = elementwise(call, shape, [(shape, call.read(t)) for t in tensors], every)
    call.write(call.out, layout.moved({d: d + (d >= dim) for d in range(len(shape))}))


@rule("index", "index_select", "_unsafe_index")
def index(call: Call) -> None:
    """Indices by number: the dimensions they pick from stay whole."""
    x = call.args[0]
    layout = call.read(x)
    for numbers in tensors_among(call.args[1:], call.kwargs):
        call.freeze(call.read(numbers), "tells which indices to pick")
    if call.name not in ("index", "_unsafe_index"):
        picked = {call.args[1] % x.dim()}
        to = {d: d for d in range(x.dim()) if d not in picked}
    else:
        picked = {d for d, t in enumerate(call.args[1]) if t is not None}
        to = _around(picked, x.dim(), call.out.dim())
    for block in layout.blocks:
        if picked & set(block.dims):
            call.freeze(block, "picks channels by their numbers")
            layout = layout.without(block)
    layout = layout._replace(free=layout.free - picked)
    call.write(call.out, layout.moved(to))


def _around(picked: set[int], ndim: int, out_ndim: int) -> dict[int, int]:
    """Where the dimensions that are not indexed go: around the new ones, or behind them."""
    new = out_ndim - (ndim - len(picked))
    together = max(picked) - min(picked) + 1 == len(picked)
    place = min(picked) if together else 0
    left = [d for d in range(ndim) if d not in picked]
    return {d: i if i < place else i + new for i, d in enumerate(left)}


@rule("flip")
def flip(call: Call) -> None:
    """Reversed."""
    x, dims = call.args[:2]
    gone = {d % x.dim() for d in dims}
    layout = call.read(x)
    blocks = []
    for block in layout.blocks:
        axes = tuple(axis for axis, d in enumerate(block.dims) if d in gone)
        blocks.append(block._replace(labels=np.flip(block.labels, axes) if axes else block.labels))
    call.write(call.out, layout._replace(blocks=tuple(blocks)))


@rule("roll")
def roll(call: Call) -> None:
    """Shifted round by a number of places, along which nothing may go."""
    x, dims = call.args[0], call.argument(2, "dims", [])
    along = {d % x.dim() for d in dims} or set(range(x.dim()))
    call.write(call.out, mixed(call, x, along, "shifts by a number of channels", zero=False))
