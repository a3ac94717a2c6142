"""WidthPlan: how wide every group of channels will be, and why."""

from __future__ import annotations

from dataclasses import dataclass

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
class WidthPlan:
    """The widths of all prunable groups; ``print`` shows them as a table.

    Attributes:
        groups: what becomes of every prunable group, in the graph's order.
        unit: ``"layer"``, ``"block"``, or ``"zero-groups"`` where units that are zero go.
        factor: what the rule's widths were scaled with to meet a target; 1 without one.
        macs, params: multiply-accumulates and parameters of the planned model.
        full_macs, full_params: those of the given model.
    """

    groups: tuple[GroupPlan, ...]
    unit: str
    factor: float
    macs: int
    params: int
    full_macs: int
    full_params: int

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
        sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"{a:<{sizes[0]}}  {b:>{sizes[1]}}  {c:>{sizes[2]}}  {d:>{sizes[3]}}  {e}".rstrip()
            for a, b, c, d, e in rows
        ]
        scaled = f", widths scaled by {self.factor:.3f}" if self.factor != 1 else ""
        lines.append(
            f"MACs {self.full_macs:,} -> {self.macs:,} ({_share(self.macs, self.full_macs)}), "
            f"parameters {self.full_params:,} -> {self.params:,} "
            f"({_share(self.params, self.full_params)}); unit: {self.unit}{scaled}"
        )
        return "\n".join(lines)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"
