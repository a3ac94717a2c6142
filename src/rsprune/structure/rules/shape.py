"""Operators that reorder, merge, split and repeat dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from rsprune.structure.layout import Block, Labels, Layout, compact, merged, segments, spread
from rsprune.structure.rules.pointwise import elementwise, first
from rsprune.structure.rules.reduce import kept_whole
from rsprune.structure.rules.registry import FUNCTIONS, Call, rule


@rule("permute")
def permute(call: Call) -> None:
    """Dimensions in another order."""
    x, dims = call.args[:2]
    call.write(call.out, call.read(x).moved({d % x.dim(): i for i, d in enumerate(dims)}))


@rule("transpose", "t", "swapaxes", "numpy_T")
def transpose(call: Call) -> None:
    """Two dimensions exchanged."""
    x = call.args[0]
    if x.dim() < 2:
        call.write(call.out, call.read(x))
        return
    a, b = (d % x.dim() for d in call.args[1:3]) if len(call.args) > 2 else (0, 1)
    to = {d: d for d in range(x.dim())} | {a: b, b: a}
    call.write(call.out, call.read(x).moved(to))


@rule("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "flatten",
      "unflatten", "view_copy", "reshape_copy")  # fmt: skip
def view(call: Call) -> None:
    """The same elements in another shape."""
    x = call.args[0]
    call.write(call.out, viewed(call, call.read(x), x.shape, call.out.shape))


def viewed(call: Call, layout: Layout, old: Sequence[int], new: Sequence[int]) -> Layout:
    """The layout after a view from shape ``old`` to shape ``new``."""
    if not layout.blocks and not layout.free:
        return layout
    runs = segments(old, new)
    free = [d for a, b in runs if all(o in layout.free for o in a) for d in b]
    blocks: list[Block] = []
    for dims in merged([*(a for a, _ in runs), *(block.dims for block in layout.blocks)]):
        own = [block for block in layout.blocks if block.dims[0] in dims]
        if not own:
            continue
        before = sorted(dims)
        after = sorted(d for a, b in runs if a[0] in dims for d in b)
        if not after:
            continue  # what is left has size 1
        if len(own) > 1:
            for block in own:
                call.freeze(block, "merges two dimensions that could both be cut")
            continue
        labels = spread(own[0], before, old).reshape([new[d] for d in after])
        new_block = compact(after, labels, own[0].zero)
        if new_block is not None:
            if len(new_block.dims) > 1:
                call.store.grid(new_block.labels)
            blocks.append(new_block)
    return Layout(tuple(blocks), frozenset(free))


@rule("as_strided")
def as_strided(call: Call) -> None:
    """Only as pools use it: to rename the memory format of a tensor that stays as it is."""
    x = call.args[0]
    layout = call.read(x)
    sizes = [
        (size, stride) for size, stride in zip(x.shape, call.args[2], strict=False) if size > 1
    ]
    dense = all(a[1] == b[0] * b[1] for a, b in pairwise(sizes)) and (
        not sizes or sizes[-1][1] == 1
    )
    if tuple(call.args[1]) != tuple(x.shape) or not dense:
        call.freeze(layout, "addresses memory directly")
        layout = Layout()
    call.write(call.out, layout)


@rule("expand", "expand_copy", "broadcast_to")
def expand(call: Call) -> None:
    """Dimensions of size 1 stretched: all their indices are alike."""
    x = call.args[0]
    offset = call.out.dim() - x.dim()
    layout = call.read(x).moved({d: d + offset for d in range(x.dim())})
    stretched = {
        d
        for d in range(call.out.dim())
        if call.out.shape[d] != 1 and (d < offset or x.shape[d - offset] == 1)
    }
    call.write(call.out, layout._replace(free=layout.free | stretched))


def expand_as(call: Call) -> None:
    """Stretched to the shape of another tensor, whose labels it takes on."""
    x, other = call.args[0], call.argument(1, "other")
    operands = [(x.shape, call.read(x)), (other.shape, call.read(other))]
    call.write(call.out, elementwise(call, call.out.shape, operands, first))


FUNCTIONS[torch.Tensor.expand_as] = expand_as


@rule("repeat")
def repeat(call: Call) -> None:
    """The tensor laid out several times."""
    x, counts = call.args[:2]
    offset = call.out.dim() - x.dim()
    layout = call.read(x).moved({d: d + offset for d in range(x.dim())})
    blocks = []
    for block in layout.blocks:
        blocks.append(block._replace(labels=np.tile(block.labels, [counts[d] for d in block.dims])))
        if len(block.dims) > 1:
            call.store.grid(blocks[-1].labels)
    stretched = {
        d for d, n in enumerate(counts) if n > 1 and (d < offset or x.shape[d - offset] == 1)
    }
    call.write(call.out, Layout(tuple(blocks), layout.free | stretched))


def _channels(call: Call) -> tuple[Layout, Block | None]:
    """The layout of the input and its channels' block, which must be theirs alone."""
    x = call.args[0]
    shuffles = call.name in ("channel_shuffle", "native_channel_shuffle")
    dim = 1 if shuffles or call.name in ("im2col", "col2im") else x.dim() - 3
    layout = call.read(x)
    if not shuffles:
        layout = kept_whole(call, layout, range(dim + 1, x.dim()), "rearranges space")
    block = layout.at(dim)
    if block is not None and len(block.dims) > 1:
        call.freeze(block, "a split dimension is split again")
        return layout.without(block), None
    return layout, block


def _replaced(layout: Layout, block: Block, labels: Labels) -> Layout:
    return layout._replace(
        blocks=tuple(b._replace(labels=labels) if b is block else b for b in layout.blocks)
    )


@rule("pixel_shuffle")
def pixel_shuffle(call: Call) -> None:
    """Channels become space: the channels of one output channel are one unit."""
    layout, block = _channels(call)
    if block is not None:
        by_output = block.labels.reshape(-1, call.args[1] ** 2)
        call.tie(by_output, 1)
        layout = _replaced(layout, block, by_output[:, 0])
    call.write(call.out, layout)


@rule("pixel_unshuffle")
def pixel_unshuffle(call: Call) -> None:
    """Space becomes channels."""
    layout, block = _channels(call)
    if block is not None:
        layout = _replaced(layout, block, np.repeat(block.labels, call.args[1] ** 2))
    call.write(call.out, layout)


@rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(call: Call) -> None:
    """Channels dealt out over groups, which stay equal."""
    layout, block = _channels(call)
    if block is not None:
        by_group = block.labels.reshape(call.args[1], -1)
        call.tie(by_group, 0)
        layout = _replaced(layout, block, by_group.T.ravel())
    call.write(call.out, layout)


@rule("im2col")
def im2col(call: Call) -> None:
    """Patches: every channel becomes as many as a patch has points."""
    layout, block = _channels(call)
    points = int(np.prod(call.args[1]))
    if block is not None:
        layout = _replaced(layout, block, np.repeat(block.labels, points))
    call.write(call.out, layout)


@rule("col2im")
def col2im(call: Call) -> None:
    """Patches put together again."""
    layout, block = _channels(call)
    points = int(np.prod(call.args[2]))
    if block is not None:
        by_channel = block.labels.reshape(-1, points)
        call.tie(by_channel, 1)
        layout = _replaced(layout, block, by_channel[:, 0])
    call.write(call.out, layout)


@rule("glu")
def glu(call: Call) -> None:
    """One half gates the other."""
    x = call.args[0]
    dim = call.argument(1, "dim", -1) % x.dim()
    layout = call.read(x)
    block = layout.at(dim)
    if block is not None and len(block.dims) > 1:
        call.freeze(block, "a split dimension is gated")
        layout = layout.without(block)
    elif block is not None:
        halves = block.labels.reshape(2, -1)
        call.tie(halves, 0)
        layout = _replaced(layout, block, halves[0])
    call.write(call.out, layout)
