"""Operators that work index by index, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from rsprune.structure.layout import Block, Labels, Layout, first_along, merged, spread
from rsprune.structure.rules.registry import Call, rule

Operand = tuple[Sequence[int], Layout]  # a shape and its layout
ZeroRule = Callable[[list[bool | None]], bool]  # None stands for an operand without these labels


def elementwise(
    call: Call, shape: Sequence[int], operands: Sequence[Operand], zero: ZeroRule
) -> Layout:
    """Unite the labels of operands that are broadcast to ``shape``; the layout of the result."""
    placed = [_placed(shape, *operand) for operand in operands]
    blocks = [block for layout, _ in placed for block in layout.blocks]
    if len({block.dims for block in blocks}) == len(blocks) == 1 == len(placed):
        return placed[0][0].with_zero(zero([blocks[0].zero]))
    result = [
        _united(call, tuple(sorted(dims)), shape, placed, zero)
        for dims in merged(block.dims for block in blocks)
    ]
    bound = {d for layout, full in placed for d in full - layout.free}
    free = {d for layout, _ in placed for d in layout.free} - bound
    return Layout(tuple(result), frozenset(free))


def _placed(shape: Sequence[int], own: Sequence[int], layout: Layout) -> tuple[Layout, set[int]]:
    """A layout in terms of the broadcast dimensions, and those along which it is full."""
    offset = len(shape) - len(own)
    full = {d + offset for d in range(len(own)) if own[d] == shape[d + offset] and own[d] != 1}
    if offset:
        layout = layout.moved({d: d + offset for d in range(len(own))})
    if any(d not in full and shape[d] != 1 for block in layout.blocks for d in block.dims):
        stretched = [_stretched(block, shape) for block in layout.blocks]
        layout = layout._replace(blocks=tuple(block for block in stretched if block is not None))
    return layout, full


def _stretched(block: Block, shape: Sequence[int]) -> Block | None:
    """A block without those dimensions of size 1 that are broadcast."""
    labels, dims = block.labels, list(block.dims)
    for axis in reversed(range(len(dims))):
        if labels.shape[axis] == 1 != shape[dims[axis]]:
            labels = first_along(labels, axis)
            del dims[axis]
    return Block(tuple(dims), labels, block.zero) if dims else None


def _united(
    call: Call,
    dims: tuple[int, ...],
    shape: Sequence[int],
    placed: list[tuple[Layout, set[int]]],
    zero: ZeroRule,
) -> Block:
    others: list[Labels] = []
    whole: list[int] = []
    zeros: list[bool | None] = []
    for layout, full in placed:
        present = [d for d in dims if d in full and d not in layout.free]
        own = [block for block in layout.blocks if block.dims[0] in dims]
        zeros.append(own[0].zero if own else (False if present else None))
        if len(own) > 1:
            for block in own:
                call.freeze(block, "two dimensions meet one that was split")
        if own:
            others.append(spread(own[0], dims, shape))
        elif len(present) == len(dims):
            others.append(np.zeros((1,) * len(dims), dtype=np.int64))
        else:
            whole.extend(present)
    chosen = next(labels for labels in others if labels.any() or labels is others[-1])
    base = np.broadcast_to(chosen, [shape[d] for d in dims])
    for labels in others:
        if labels is not chosen:
            call.unite(base, labels)
    for dim in whole:
        call.tie(base, dims.index(dim))
    return Block(dims, base, zero(zeros))


def every(zeros: list[bool | None]) -> bool:
    """A sum is zero where every term is."""
    return all(zeros) and bool(zeros)


def some(zeros: list[bool | None]) -> bool:
    """A product is zero where some factor is."""
    return any(zeros)


def first(zeros: list[bool | None]) -> bool:
    """Zero where the first operand is."""
    return bool(zeros[0])


def never(_: list[bool | None]) -> bool:
    """Not known to be zero."""
    return False


_SUMS = {
    "add",
    "sub",
    "rsub",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "hypot",
    "__or__",
    "bitwise_or",
}
_PRODUCTS = {"mul", "logical_and", "bitwise_and", "__and__"}
# f(0) = 0
_KEEPS_ZERO = {
    "abs", "alias", "arcsin", "asin", "asinh", "atan", "atanh", "ceil", "celu", "clone",
    "conj", "deg2rad", "detach", "detach_copy", "div", "elu", "erf", "expm1", "floor",
    "gelu", "hardshrink", "hardswish", "leaky_relu", "lift_fresh", "lift_fresh_copy", "log1p",
    "mish", "native_dropout", "neg", "nan_to_num", "_prelu_kernel", "positive", "real", "relu",
    "relu6", "round", "rrelu_with_noise", "selu", "sgn", "sign", "silu", "sin", "sinh",
    "softshrink", "sqrt", "square", "tan", "tanh", "_to_copy", "true_divide", "trunc", "contiguous",
}  # fmt: skip
# f(0) is infinite
_SINGULAR = {"log", "log2", "log10", "logit", "reciprocal", "rsqrt"}


def _zero_rule(call: Call) -> ZeroRule:
    name = call.name.rstrip("_") if not call.name.endswith("__") else call.name
    if name in _SUMS:
        return every
    if name in _PRODUCTS:
        return some
    if name in ("clamp", "hardtanh", "clamp_min", "clamp_max"):
        return first if _covers_zero(call, name) else never
    if name == "pow":
        exponent = call.args[1]
        return first if isinstance(exponent, int | float) and exponent > 0 else never
    if name == "masked_fill":
        return first if call.args[2] == 0 else never
    if name == "threshold":
        return first if call.args[1] < 0 or call.args[2] == 0 else never
    return first if name in _KEEPS_ZERO else never


def _covers_zero(call: Call, name: str) -> bool:
    low = (
        None if name == "clamp_max" else call.argument(1, "min", -1 if name == "hardtanh" else None)
    )
    at = 1 if name == "clamp_max" else 2
    high = (
        None if name == "clamp_min" else call.argument(at, "max", 1 if name == "hardtanh" else None)
    )
    bounds = [bound for bound in (low, high) if bound is not None]
    if any(isinstance(bound, Tensor) for bound in bounds):
        return False
    return (low is None or low <= 0) and (high is None or high >= 0)


@rule(
    "pointwise", "hardswish", "_prelu_kernel", "native_dropout", "copy", "_to_copy", "detach",
    "alias", "threshold", "log_sigmoid_forward", "rrelu_with_noise", "lift_fresh", "contiguous",
    "lift_fresh_copy", "relu6", "elu", "celu", "selu", "leaky_relu", "hardtanh", "hardsigmoid",
    "softplus", "square", "nan_to_num", "detach_copy", "hardshrink", "softshrink",
)  # fmt: skip
def pointwise(call: Call) -> None:
    """Every operator that torch tags as pointwise, and some that it should."""
    call_zero = _zero_rule(call)
    outputs = call.out if isinstance(call.out, tuple | list) else (call.out,)
    shape = outputs[0].shape
    operands: list[Operand] = [_operand(call, value) for value in _values(call)]
    if call.name.rstrip("_") in _SINGULAR or _negative_power(call):
        _refuse_zero(call, operands[0][1])
    if call.name.rstrip("_") in ("div", "true_divide") and len(operands) > 1:
        _refuse_zero(call, operands[1][1])
    layout = elementwise(call, shape, operands, call_zero)
    for output in outputs:
        if isinstance(output, Tensor) and output.shape == shape:
            call.write(output, layout)


def _values(call: Call) -> list[Any]:
    name = call.name.rstrip("_")
    if name == "copy":
        return list(call.args[:2])
    if name == "where":
        return [*call.args[1:3], call.args[0]] if len(call.args) > 2 else list(call.args)
    given = [a for a in call.args if isinstance(a, Tensor)]
    given += [a for a in call.kwargs.values() if isinstance(a, Tensor) and a is not call.out]
    # a number added to a tensor counts: it makes zeros something else
    if name in _SUMS and len(given) == 1:
        return [*given, 1.0]
    return given


def _operand(call: Call, value: Any) -> Operand:
    return (value.shape, call.read(value)) if isinstance(value, Tensor) else ((), Layout())


def _negative_power(call: Call) -> bool:
    return call.name.rstrip("_") == "pow" and not (
        isinstance(call.args[1], int | float) and call.args[1] >= 0
    )


def _refuse_zero(call: Call, layout: Layout) -> None:
    for block in layout.blocks:
        if block.zero:
            call.freeze(block, "is not finite at zero")


@rule("where")
def where(call: Call) -> None:
    """Chooses between two tensors: zero where both are."""
    values = _values(call)
    operands = [_operand(call, value) for value in values]

    def zero(zeros: list[bool | None]) -> bool:
        return every(zeros[:2])

    call.write(call.out, elementwise(call, call.out.shape, operands, zero))
