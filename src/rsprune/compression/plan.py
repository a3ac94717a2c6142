"""WidthPlan: how wide every group of channels will be, and why."""

from __future__ import annotations

from dataclasses import dataclass

from rsprune.columns import aligned
from rsprune.compression.sparsity import Sparsity


@dataclass(frozen=True)
class GroupPlan:
    """What becomes of one group.

    Attributes:
        name: the group's name in the graph.
        size: the units it has.
        width: the units it keeps.
        counted: the exact zeros and elements that drove it; None if none did.
        driver: the layers or the block that drove it, or why it stays whole.
    """

    name: str
    size: int
    width: int
    counted: Sparsity | None
    driver: str

    @property
    def sparsity(self) -> float | None:
        """The ratio of zeros that drove it; None if none did."""
        return None if self.counted is None else self.counted.ratio


@dataclass(frozen=True)
class LayerTime:
    """The seconds of a layer for one batch, before and after."""

    name: str
    before: float
    after: float


@dataclass(frozen=True)
class PlanTime:
    """What was measured for a plan.

    Attributes:
        runtime, batch, threads: where; see :func:`rsprune.metrics.latency.latency`.
        before: the seconds of the given model for one batch.
        after: those of the planned model.
        layers: the seconds of the layers, if there was a target. They run alone: what they leave
            of the whole is norms, activations, additions and overhead.
        steps: with ``round_to="auto"``, the time of each multiple that was tried as a fraction of
            the given model's, all at the same number of multiply-accumulates.
    """

    runtime: str
    batch: int
    threads: int | None
    before: float
    after: float
    layers: tuple[LayerTime, ...] = ()
    steps: tuple[tuple[int, float], ...] = ()

    @property
    def share(self) -> float:
        """The planned model's time as a fraction of the given model's."""
        return self.after / self.before

    def __str__(self) -> str:
        lines = [self._layers()] if self.layers else []
        if self.steps:
            tried = ", ".join(f"{step}: {share:.3f}" for step, share in self.steps)
            lines.append(f"time at equal MACs by round_to, of the given model's: {tried}")
        threads = "" if self.threads is None else f", threads {self.threads}"
        lines.append(
            f"time {1e3 * self.before:.3g} ms -> {1e3 * self.after:.3g} ms ({self.share:.1%}); "
            f"{self.runtime}, batch {self.batch}{threads}"
        )
        return "\n".join(lines)

    def _layers(self) -> str:
        totals = [sum(getattr(one, side) for one in self.layers) for side in ("before", "after")]
        rest = LayerTime(
            "all else", max(0.0, self.before - totals[0]), max(0.0, self.after - totals[1])
        )
        rows = [
            (one.name or "(model)", f"{1e3 * one.before:.3f}", f"{1e3 * one.after:.3f}")
            for one in (*self.layers, rest)
        ]
        return aligned([("layer", "ms from", "to"), *rows], right=(1, 2))


@dataclass(frozen=True)
class WidthPlan:
    """The widths of all prunable groups; ``print`` shows them as a table.

    Attributes:
        groups: what becomes of every prunable group, in the graph's order.
        unit: ``"layer"``, ``"block"``, or ``"zero-groups"`` where units that are zero go.
        factor: what the rule's widths were scaled with to meet a target; 1 without one. With
            ``spread="cost"`` each group has its own share of it.
        macs, params: multiply-accumulates and parameters of the planned model.
        full_macs, full_params: those of the given model.
        round_to: what widths are multiples of.
        time: what was measured, with ``target_latency`` or ``round_to="auto"``; else None.
        spread: ``"even"`` or ``"cost"``: how the cut that a target asks for was spread.
    """

    groups: tuple[GroupPlan, ...]
    unit: str
    factor: float
    macs: int
    params: int
    full_macs: int
    full_params: int
    round_to: int = 1
    time: PlanTime | None = None
    spread: str = "even"

    @property
    def widths(self) -> dict[str, int]:
        """The width of every group by name."""
        return {group.name: group.width for group in self.groups}

    def __str__(self) -> str:
        rows = [("group", "from", "to", "sparsity", "driven by")]
        rows += [
            (
                group.name,
                str(group.size),
                str(group.width),
                "" if group.sparsity is None else f"{group.sparsity:.1%}",
                group.driver,
            )
            for group in self.groups
        ]
        lines = [aligned(rows, right=(1, 2, 3))]
        scaled = f", widths scaled by {self.factor:.3f}" if self.factor != 1 else ""
        scaled += " and by what a weight costs" if self.spread == "cost" else ""
        scaled += f", multiples of {self.round_to}" if self.round_to > 1 else ""
        lines.append(
            f"MACs {self.full_macs:,} -> {self.macs:,} ({_share(self.macs, self.full_macs)}), "
            f"parameters {self.full_params:,} -> {self.params:,} "
            f"({_share(self.params, self.full_params)}); unit: {self.unit}{scaled}"
        )
        if self.time is not None:
            lines.append(str(self.time))
        return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"
