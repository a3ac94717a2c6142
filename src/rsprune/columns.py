"""Rows of text in columns."""

from __future__ import annotations

from collections.abc import Container, Sequence


def aligned(rows: Sequence[Sequence[str]], right: Container[int]) -> str:
    """Rows as a table; the columns in ``right`` end flush, the others begin so."""
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(size) if i in right else cell.ljust(size)
            for i, (cell, size) in enumerate(zip(row, sizes, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
