"""Operators that sum, average, compare or mix along dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from rsprune.structure.layout import Block, Layout, first_along
from rsprune.structure.rules.registry import Call, rule


def reduced(
    call: Call,
    layout: Layout,
    ndim: int,
    dims: Iterable[int],
    *,
    keepdim: bool,
    counts: bool,
    outputs: Sequence[Tensor] = (),
) -> Layout:
    """The layout after ``dims`` were reduced.

    A sum over channels is the same without those that are zero; with ``counts``, how many there are
    matters too (a mean, a maximum), and none may go.
    """
    gone = set(dims)
    left = [d for d in range(ndim) if d not in gone]
    to = {d: d if keepdim else i for i, d in enumerate(left)}
    blocks = []
    for block in layout.blocks:
        hit = [axis for axis, d in enumerate(block.dims) if d in gone]
        if len(hit) == len(block.dims):
            if counts:
                for output in outputs:
                    call.freeze_if_used(output, block, "depends on how many channels there are")
            elif not block.zero:
                call.freeze(block, "sums values that dropped channels do not make zero")
            continue
        blocks.append(_without(call, block, hit))
    return Layout(tuple(blocks), layout.free - gone).moved(to)


def _without(call: Call, block: Block, axes: list[int]) -> Block:
    """A block without some of its axes, along which nothing may go."""
    labels = block.labels
    for axis in reversed(axes):
        call.tie(labels, axis)
        labels = first_along(labels, axis)
    dims = tuple(d for axis, d in enumerate(block.dims) if axis not in axes)
    return Block(dims, labels, block.zero)


def _dims(value: Any, ndim: int) -> list[int]:
    if value is None or (isinstance(value, list | tuple) and not value):
        return list(range(ndim))
    return [
        d % ndim if ndim else 0 for d in (value if isinstance(value, list | tuple) else [value])
    ]


def _reduce(call: Call, dims: Any, keepdim: bool, *, counts: bool, zero: bool = True) -> None:
    x = call.args[0]
    outputs = list(call.out) if isinstance(call.out, tuple | list) else [call.out]
    layout = reduced(
        call, call.read(x), x.dim(), _dims(dims, x.dim()), keepdim=bool(keepdim), counts=counts,
        outputs=outputs,
    ).with_zero(zero)  # fmt: skip
    for output in outputs:
        call.write(output, layout)


@rule("sum", "nansum", "count_nonzero")
def total(call: Call) -> None:
    """Sums."""
    _reduce(call, call.argument(1, "dim"), call.argument(2, "keepdim", False), counts=False)


@rule("linalg_vector_norm", "norm")
def vector_norm(call: Call) -> None:
    """Norms: zeros add nothing, but a norm of no power counts."""
    power = call.argument(1, "ord", 2)
    counts = not (isinstance(power, int | float) and power > 0)
    _reduce(call, call.argument(2, "dim"), call.argument(3, "keepdim", False), counts=counts)


@rule("mean", "amax", "amin", "var", "std", "var_mean", "std_mean", "logsumexp", "prod", "all",
      "any", "argmax", "argmin", "max", "min", "median", "mode")  # fmt: skip
def counted(call: Call) -> None:
    """Reductions that change with the number of channels."""
    spread = call.name in ("var", "std", "var_mean", "std_mean")  # these have a correction first
    keepdim = call.argument(3 if spread and len(call.args) > 2 else 2, "keepdim", False)
    _reduce(
        call, call.argument(1, "dim"), bool(keepdim), counts=True,
        zero=call.name not in ("argmax", "argmin", "logsumexp", "all"),
    )  # fmt: skip


def mixed(call: Call, x: Tensor, dims: Iterable[int], reason: str, *, zero: bool) -> Layout:
    """The layout of ``x`` after an operator that mixes along ``dims`` and keeps its shape there."""
    layout = call.read(x)
    gone = set(dims)
    blocks = []
    for block in layout.blocks:
        hit = [axis for axis, d in enumerate(block.dims) if d in gone]
        if len(hit) == len(block.dims):
            call.freeze(block, reason)
        for axis in hit if len(hit) < len(block.dims) else ():
            call.tie(block.labels, axis)
        blocks.append(block._replace(zero=block.zero and zero))
    return Layout(tuple(blocks), layout.free)


def kept_whole(call: Call, layout: Layout, dims: Iterable[int], reason: str) -> Layout:
    """The layout without labels along ``dims``, of which nothing may go."""
    gone = set(dims)
    blocks = []
    for block in layout.blocks:
        hit = [axis for axis, d in enumerate(block.dims) if d in gone]
        if len(hit) == len(block.dims):
            call.freeze(block, reason)
            continue
        blocks.append(_without(call, block, hit))
    return Layout(tuple(blocks), layout.free - gone)


@rule("_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax")
def softmax(call: Call) -> None:
    """Exact over space; over channels every channel counts."""
    x, dim = call.args[:2]
    call.write(
        call.out, mixed(call, x, [dim % x.dim()], "normalises over the channels", zero=False)
    )


@rule("cumsum", "cumprod", "logcumsumexp", "sort", "topk", "cummax", "cummin")
def scan(call: Call) -> None:
    """Runs along one dimension."""
    x = call.args[0]
    dim = call.argument(2 if call.name in ("topk",) else 1, "dim", -1)
    layout = mixed(call, x, [dim % max(x.dim(), 1)], "runs along the channels", zero=False)
    outputs = call.out if isinstance(call.out, tuple | list) else (call.out,)
    along = {dim % max(x.dim(), 1)}
    for output in outputs:
        same = output.shape == x.shape
        kept = layout.blocks if same else [b for b in layout.blocks if not along & set(b.dims)]
        call.write(output, Layout(tuple(kept)))
