"""Runs one elementwise update over many parameters, in one of three ways.

Every update comes in two forms that give the same bits:

- ``literal``: a few out-of-place lines that read like the formula. ``foreach=False`` calls it
  tensor by tensor; ``fused=True`` compiles it over the whole list of tensors.
- ``in_place``: the same arithmetic without boolean masks or temporaries. ``foreach=True`` (the
  default) calls it on blocks small enough for the CPU's cache to hold every operand, so that a
  chain of six operators costs little more than one pass over memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rsprune.errors import RsPruneWarning

BLOCK = 1 << 19  # elements: a few MB for a block's operands, and threads still have work to share

GRAPHS = 64  # compiled graphs kept for one update: a graph for every new set of shapes

Rows = Sequence[Sequence[Tensor]]  # one row per parameter: (param, grad, *state)


class Update(NamedTuple):
    """An elementwise update in its two forms; see the module's docstring."""

    literal: Callable[..., None]  # literal(param, grad, *state, **scalars)
    in_place: Callable[..., None]  # in_place(param, grad, *state, work=(a, b), **scalars)


def run(update: Update, rows: Rows, *, foreach: bool, fused: bool, **scalars: Any) -> None:
    """Apply ``update`` to every row, in place."""
    if fused and try_compiled(_over_rows(update.literal), rows, scalars):
        return
    if foreach:
        _run_blocks(update.in_place, rows, scalars)
    else:
        for row in rows:
            update.literal(*row, **scalars)


def _run_blocks(in_place: Callable[..., None], rows: Rows, scalars: dict[str, Any]) -> None:
    size = min(BLOCK, max(row[0].numel() for row in rows))
    work: tuple[Tensor, Tensor] | None = None
    for row in rows:
        for block in _blocks(row):
            first = block[0]
            if work is None or work[0].dtype != first.dtype or work[0].device != first.device:
                work = (first.new_empty(size), first.new_empty(size))
            if first.dim() == 1 and first.numel() <= size:
                scratch = (work[0][: first.numel()], work[1][: first.numel()])
            else:
                scratch = (torch.empty_like(first), torch.empty_like(first))
            in_place(*block, work=scratch, **scalars)


def _blocks(row: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Cut the tensors of a row into aligned flat blocks where their memory allows it."""
    if row[0].device.type == "cpu" and all(t.is_contiguous() for t in row):
        flat = [t.view(-1) for t in row]
    elif row[0].device.type == "cpu" and all(_is_channels_last(t) for t in row):
        flat = [t.permute(0, 2, 3, 1).view(-1) for t in row]
    else:
        yield row
        return
    yield from zip(*(torch.split(t, BLOCK) for t in flat), strict=True)


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


@cache
def _over_rows(literal: Callable[..., None]) -> Callable[..., None]:
    def every_row(rows: Rows, **scalars: Any) -> None:
        for row in rows:
            literal(*row, **scalars)

    # A code object of its own: torch.compile counts the graphs it keeps per code object.
    every_row.__code__ = every_row.__code__.replace(co_name=f"{literal.__name__}_of_every_row")
    return every_row


def try_compiled(function: Callable[..., None], rows: Rows, scalars: dict[str, Any]) -> bool:
    """Call ``function(rows, **scalars)`` compiled as one graph.

    False, with nothing changed, where it cannot be compiled. Floats are passed as 0-dim tensors,
    so that a new learning rate is not a new graph.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException  # takes seconds

    dtype = rows[0][0].dtype
    if dtype not in (torch.float32, torch.float64) or any(row[0].dtype != dtype for row in rows):
        return False  # half precision keeps Python scalars, which are not rounded to it
    boxed = {
        name: torch.tensor(value, dtype=dtype, device="cpu") if isinstance(value, float) else value
        for name, value in scalars.items()
    }
    compiled = _compile(function)
    if compiled.failed:
        return False
    try:
        compiled.call(rows, **boxed)
    except (TorchDynamoException, FailOnRecompileLimitHit) as problem:
        compiled.failed = True
        if isinstance(problem, FailOnRecompileLimitHit):
            _warn_once(
                f"{GRAPHS} graphs are compiled, one for every new set of shapes, and no more are "
                "kept. Restart the process to compile again."
            )
        else:
            _warn_once(
                "torch.compile failed. Install a C++ compiler such as g++. It said: "
                f"{' '.join(str(problem).split())[:160]}"
            )
        return False
    return True


@dataclass
class _Compiled:
    call: Callable[..., None]
    failed: bool = False


@cache
def _compile(function: Callable[..., None]) -> _Compiled:
    settings: dict[str, Any] = {
        "fullgraph": True,
        "dynamic": False,
        "recompile_limit": GRAPHS,
        # Contraction makes y + scale * x the fused multiply-add that Tensor.add(alpha=) is.
        "options": {"cpp.enable_floating_point_contract_flag": "fast"},
    }
    return _Compiled(torch.compile(function, **settings))


@cache
def _warn_once(reason: str) -> None:
    warnings.warn(
        f"fused=True goes on with foreach=True, which gives the same result: {reason}",
        RsPruneWarning,
        stacklevel=2,
    )
