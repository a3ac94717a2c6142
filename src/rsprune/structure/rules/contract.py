"""Convolutions and matrix products: unite the labels that are summed over, pass on the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from rsprune.structure.layout import Block, Labels, Layout
from rsprune.structure.rules.pointwise import elementwise, every, some
from rsprune.structure.rules.reduce import kept_whole, reduced
from rsprune.structure.rules.registry import Call, rule


def product(call: Call, left: tuple[Tensor, str], right: tuple[Tensor, str], result: str) -> Layout:
    """The layout of ``einsum`` over two tensors, each letter of which names a dimension."""
    sizes = {c: tensor.shape[d] for tensor, own in (left, right) for d, c in enumerate(own)}
    terms = [(call.read(tensor), own) for tensor, own in (left, right)]
    return _einsum(call, terms, sizes, result)


def _einsum(
    call: Call, terms: Sequence[tuple[Layout, str]], sizes: Mapping[str, int], result: str
) -> Layout:
    """Multiply index by index, then sum over the letters that are not in ``result``."""
    letters = result + "".join(dict.fromkeys(c for _, own in terms for c in own if c not in result))
    operands = [
        (
            [sizes[c] if c in own else 1 for c in letters],
            layout.moved({d: letters.index(c) for d, c in enumerate(own)}),
        )
        for layout, own in terms
    ]
    joined = elementwise(call, [sizes[c] for c in letters], operands, some)
    summed = tuple(range(len(result), len(letters)))
    return reduced(call, joined, len(letters), summed, keepdim=False, counts=False)


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
    x, weight, bias, stride, padding, _, transposed, _, groups = call.args[:9]
    inputs = _along_channels(call, x, weight, stride, padding)
    filters = _without_kernel(call, weight)
    if groups == 1:
        space = "xyz"[: x.dim() - 2]
        order = "io" if transposed else "oi"
        sizes = dict(zip("bi" + space, x.shape, strict=True)) | dict(
            zip(order, weight.shape, strict=False)
        )
        layout = _einsum(call, [(inputs, "bi" + space), (filters, order)], sizes, "bo" + space)
    else:
        join = _grouped_transposed if transposed else _grouped
        layout = _with_channels(inputs, join(call, inputs, filters, weight, groups))
    if bias is not None:
        shape = [1, call.out.shape[1], *[1] * (weight.dim() - 2)]
        operands = [(call.out.shape, layout), (shape, call.read(bias).moved({0: 1}))]
        layout = elementwise(call, call.out.shape, operands, every)
    call.write(call.out, layout)


def _along_channels(
    call: Call, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]
) -> Layout:
    """The layout of the input. A kernel mixes what it slides along, so nothing there may go."""
    axes = range(weight.dim() - 2)
    slid = [
        axis + 2
        for axis in axes
        if weight.shape[axis + 2] != 1
        or stride[axis % len(stride)] != 1
        or padding[axis % len(padding)] != 0
    ]
    layout = kept_whole(call, call.read(x), slid, "a kernel slides along it")
    return layout._replace(free=layout.free & {0})


def _without_kernel(call: Call, weight: Tensor) -> Layout:
    kernel = range(2, weight.dim())
    layout = kept_whole(call, call.read(weight), kernel, "a kernel's dimension cannot be cut")
    return layout._replace(free=layout.free & {0, 1})


def _channel_labels(call: Call, layout: Layout, dim: int, size: int) -> tuple[Labels, bool]:
    """The labels of one dimension; those that were split together with others are frozen."""
    block = layout.at(dim)
    if block is not None and len(block.dims) > 1:
        call.freeze(block, "a split dimension meets a grouped convolution")
        block = None
    if block is None:
        return np.zeros(size, dtype=np.int64), False
    return block.labels, block.zero


def _grouped(call: Call, x: Layout, filters: Layout, weight: Tensor, groups: int) -> Block:
    """Groups stay equal: channel i of every group is one unit. Depthwise: out = in."""
    inputs, _ = _channel_labels(call, x, 1, weight.shape[1] * groups)
    outputs, zero = _channel_labels(call, filters, 0, weight.shape[0])
    if 0 in filters.free and weight.shape[1] == 1:  # one kernel for all channels
        return Block((1,), np.repeat(inputs, weight.shape[0] // groups))
    by_group = outputs.reshape(groups, -1)
    if weight.shape[1] == 1:
        call.unite(by_group, inputs[:, None])
    else:
        within, _ = _channel_labels(call, filters, 1, weight.shape[1])
        call.unite(inputs.reshape(groups, -1), within[None])
        call.tie(by_group, 0)
    return Block((1,), outputs, zero)


def _grouped_transposed(
    call: Call, x: Layout, filters: Layout, weight: Tensor, groups: int
) -> Block:
    inputs, _ = _channel_labels(call, x, 1, weight.shape[0])
    own, _ = _channel_labels(call, filters, 0, weight.shape[0])
    within, zero = _channel_labels(call, filters, 1, weight.shape[1])
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
