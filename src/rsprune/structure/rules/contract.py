"""Convolutions and matrix products: unite the labels that are summed over, pass on the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from rsprune.structure.layout import Block, Labels, Layout
from rsprune.structure.rules.pointwise import elementwise, every, some
from rsprune.structure.rules.reduce import reduced
from rsprune.structure.rules.registry import Call, rule


def product(
    call: Call, left: tuple[Tensor, str], right: tuple[Tensor, str], result: str
) -> Layout:
    """The layout of ``einsum`` over two tensors: multiply index by index, then sum.

    Each letter names a dimension; those that are not in ``result`` are summed over.
    """
    letters = result + "".join(dict.fromkeys(c for c in left[1] + right[1] if c not in result))
    sizes = {c: tensor.shape[d] for tensor, own in (left, right) for d, c in enumerate(own)}
    shape = [sizes[c] for c in letters]
    operands = []
    for tensor, own in (left, right):
        layout = call.read(tensor).moved({d: letters.index(c) for d, c in enumerate(own)})
        operands.append(([sizes[c] if c in own else 1 for c in letters], layout))
    layout = elementwise(call, shape, operands, some)
    summed = tuple(range(len(result), len(letters)))
    return reduced(call, layout, len(letters), summed, keepdim=False, counts=False)


def _plus(call: Call, layout: Layout, shape: Sequence[int], bias: Tensor) -> Layout:
    return elementwise(call, shape, [(shape, layout), (bias.shape, call.read(bias))], every)


@rule("mm")
def mm(call: Call) -> None:
    """Matrix times matrix."""
    a, b = call.args[:2]
    call.write(call.out, product(call, (a, "nk"), (b, "km"), "nm"))


@rule("bmm")
def bmm(call: Call) -> None:
    """A batch of matrix products."""
    a, b = call.args[:2]
    call.write(call.out, product(call, (a, "bnk"), (b, "bkm"), "bnm"))


@rule("mv")
def mv(call: Call) -> None:
    """Matrix times vector."""
    a, b = call.args[:2]
    call.write(call.out, product(call, (a, "nk"), (b, "k"), "n"))


@rule("dot", "vdot")
def dot(call: Call) -> None:
    """Vector times vector."""
    a, b = call.args[:2]
    call.write(call.out, product(call, (a, "k"), (b, "k"), ""))


@rule("addmm")
def addmm(call: Call) -> None:
    """A linear layer: matrix product plus bias."""
    bias, a, b = call.args[:3]
    layout = product(call, (a, "nk"), (b, "km"), "nm")
    call.write(call.out, _plus(call, layout, call.out.shape, bias))


@rule("baddbmm")
def baddbmm(call: Call) -> None:
    """A batch of matrix products plus a bias."""
    bias, a, b = call.args[:3]
    layout = product(call, (a, "bnk"), (b, "bkm"), "bnm")
    call.write(call.out, _plus(call, layout, call.out.shape, bias))


@rule("convolution", "_convolution")
def convolution(call: Call) -> None:
    """Convolutions of any dimension, transposed and grouped ones included."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = call.args[:9]
    del dilation
    spatial = "xyz"[: weight.dim() - 2]
    _freeze_mixed(call, x, weight, stride, padding)
    for block in call.read(weight).blocks:
        if max(block.dims) >= 2:
            call.freeze(block, "a kernel's dimension cannot be cut")
    if groups == 1:
        own = ("io" if transposed else "oi") + spatial.upper()
        layout = _summed(call, (x, "bi" + spatial), (weight, own), "bo" + spatial)
    else:
        channels = (_grouped_transposed if transposed else _grouped)(call, x, weight, groups)
        layout = _with_channels(call.read(x), channels)
    if bias is not None:
        shape = [1, call.out.shape[1], *[1] * len(spatial)]
        bias_layout = call.read(bias).moved({0: 1})
        layout = elementwise(
            call, call.out.shape, [(call.out.shape, layout), (shape, bias_layout)], every
        )
    call.write(call.out, layout)


def _summed(
    call: Call, left: tuple[Tensor, str], right: tuple[Tensor, str], result: str
) -> Layout:
    """A product in which the kernel's dimensions (upper case) carry no labels."""
    letters = "".join(c for c in right[1] if c.islower())
    blocks = [b for b in call.read(right[0]).blocks if max(b.dims) < len(letters)]
    layout = Layout(tuple(blocks))
    sizes = dict(zip(left[1], left[0].shape, strict=True))
    sizes.update(zip(letters, right[0].shape, strict=False))
    order = result + "i"
    shape = [sizes[c] for c in order]
    operands = []
    for own, labels in ((left[1], call.read(left[0])), (letters, layout)):
        moved = labels.moved({d: order.index(c) for d, c in enumerate(own)})
        operands.append(([sizes[c] if c in own else 1 for c in order], moved))
    joined = elementwise(call, shape, operands, some)
    return reduced(call, joined, len(order), (len(order) - 1,), keepdim=False, counts=False)


def _freeze_mixed(
    call: Call, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
) -> None:
    """Space is mixed by the kernel, so nothing along it may be dropped, except by a 1x1 kernel."""
    for axis in range(weight.dim() - 2):
        moves = stride[axis % len(stride)] != 1 or padding[axis % len(padding)] != 0
        if weight.shape[axis + 2] != 1 or moves:
            call.freeze(call.read(x).at(axis + 2), "a kernel slides along it")


def _channel_labels(call: Call, tensor: Tensor, dim: int) -> tuple[Labels, bool]:
    """The labels of one dimension; those that were split together with others are frozen."""
    block = call.read(tensor).at(dim)
    if block is None:
        return np.zeros(tensor.shape[dim], dtype=np.int64), False
    if len(block.dims) > 1:
        call.freeze(block, "a split dimension meets a grouped convolution")
        return np.zeros(tensor.shape[dim], dtype=np.int64), False
    return block.labels, block.zero


def _grouped(call: Call, x: Tensor, weight: Tensor, groups: int) -> Block:
    """Groups stay equal: channel i of every group is one unit. Depthwise: out = in."""
    inputs, _ = _channel_labels(call, x, 1)
    outputs, zero = _channel_labels(call, weight, 0)
    by_group = outputs.reshape(groups, -1)
    if weight.shape[1] == 1:
        call.unite(by_group, inputs[:, None])
    else:
        within, _ = _channel_labels(call, weight, 1)
        call.unite(inputs.reshape(groups, -1), within[None])
        call.tie(by_group, 0)
    return Block((1,), outputs, zero)


def _grouped_transposed(call: Call, x: Tensor, weight: Tensor, groups: int) -> Block:
    inputs, _ = _channel_labels(call, x, 1)
    own, _ = _channel_labels(call, weight, 0)
    within, zero = _channel_labels(call, weight, 1)
    call.unite(inputs, own)
    if weight.shape[0] != groups:
        call.tie(own.reshape(groups, -1), 0)
        return Block((1,), np.tile(within, groups), zero)
    if within.any():
        call.freeze(Block((1,), within), "every channel has its own outputs")
    return Block((1,), np.repeat(own, weight.shape[1]), bool(own.any()))


def _with_channels(layout: Layout, channels: Block) -> Layout:
    others = layout.without(layout.at(1))
    blocks = (*others.blocks, channels) if channels.labels.any() else others.blocks
    return Layout(blocks, layout.free - {1})


@rule("embedding")
def embedding(call: Call) -> None:
    """Rows of a table, chosen by data: the rows stay, their columns have labels."""
    weight, indices = call.args[:2]
    layout = call.read(weight)
    call.freeze(layout.at(0), "rows are chosen by data")
    columns = layout.at(1)
    if columns is not None and columns.dims == (1,):
        call.write(call.out, Layout((columns._replace(dims=(indices.dim(),)),)))
    else:
        call.freeze(columns, "a split table")
