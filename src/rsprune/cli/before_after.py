"""Rows of tables that show a network before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from rsprune.ratios import compared


def add_costs(table: Table, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """What the networks cost, and how they compare."""
    for name, key in (("MACs", "macs"), ("weights", "weights"), ("parameters", "params")):
        change = compared(before[key], after[key])
        table.add_row(name, f"{before[key]:,}", f"{after[key]:,}", change)


def add_accuracy(table: Table, name: str, before: float | None, after: float) -> None:
    """An accuracy, and the difference, where the first one is known."""
    if before is None:
        table.add_row(name, "", f"{after:.2%}", "")
    else:
        difference = f"{100 * (after - before):+.2f} points"
        table.add_row(name, f"{before:.2%}", f"{after:.2%}", difference)
