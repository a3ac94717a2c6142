"""``rsprune.compress``: trace, plan, select, cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rsprune.checks import check_choice
from rsprune.compression.plan import WidthPlan
from rsprune.compression.select import drop_by_magnitude, drop_by_nonzeros
from rsprune.compression.widths import Options, plan
from rsprune.structure.prune import prune
from rsprune.structure.trace import trace

SELECTIONS = ("magnitude", "nonzeros", "thinet")
MODES = ("ratio", "zero-groups")


@dataclass(frozen=True, eq=False)
class Compressed:
    """A smaller model, the plan of its widths and the units that were dropped, by group."""

    model: nn.Module
    plan: WidthPlan
    drop: Mapping[str, list[int]]


def compress(
    model: nn.Module,
    example_inputs: Any,
    *,
    epsilon: float = 0.1,
    unit: str = "auto",
    round_to: int = 1,
    target_macs: float | None = None,
    target_params: float | None = None,
    select: str = "magnitude",
    inherit: bool = True,
    mode: str = "ratio",
    batches: Iterable[Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> nn.Module:
    """A new, smaller model: its widths follow from the zeros in ``model``, which stays as it was.

    Args:
        model: a model that was trained sparse.
        example_inputs: one batch, as for :func:`rsprune.trace`.
        epsilon, unit, round_to, target_macs, target_params: see :func:`rsprune.plan_widths`.
        select: which units survive. ``"magnitude"``: those with the largest norm over everything
            coupled to them; ``"nonzeros"``: those with the most non-zero weights; ``"thinet"``:
            those that keep what the next layers compute on ``batches``, whose weights are then
            rescaled by least squares.
        inherit: True keeps the surviving weights; False initialises the small model anew.
        mode: ``"ratio"`` is the paper's rule; ``"zero-groups"`` removes exactly the units that are
            zero, and the outputs stay what they were.
        batches: for ``select="thinet"``: inputs, or tuples that begin with them; by default
            ``example_inputs``.
        optimizer: an optimizer of the model; it goes on with the new model's parameters.
    """
    return compress_with_plan(
        model, example_inputs, epsilon=epsilon, unit=unit, round_to=round_to,
        target_macs=target_macs, target_params=target_params, select=select, inherit=inherit,
        mode=mode, batches=batches, optimizer=optimizer,
    ).model  # fmt: skip


def compress_with_plan(
    model: nn.Module,
    example_inputs: Any,
    *,
    epsilon: float = 0.1,
    unit: str = "auto",
    round_to: int = 1,
    target_macs: float | None = None,
    target_params: float | None = None,
    select: str = "magnitude",
    inherit: bool = True,
    mode: str = "ratio",
    batches: Iterable[Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Compressed:
    """As :func:`compress`; also returns the plan and the dropped units."""
    options = Options("compress", epsilon, unit, round_to, target_macs, target_params)
    check_choice("compress", "select", select, SELECTIONS)
    check_choice("compress", "mode", mode, MODES)
    graph = trace(model, example_inputs)
    planned = plan(model, graph, options)
    choose = {"magnitude": drop_by_magnitude, "nonzeros": drop_by_nonzeros}[select]
    drop = choose(model, graph, planned.widths)
    slim = prune(model, graph, drop, optimizer=optimizer)
    return Compressed(slim, planned, drop)
