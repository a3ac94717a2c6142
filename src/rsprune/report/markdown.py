"""The report in Markdown, for pull requests: the tables, and pictures where there are some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rsprune.report import numbers, tables
from rsprune.report.figures import figures
from rsprune.report.plots import Figure
from rsprune.report.run import Run
from rsprune.report.tables import Cell, Table


def to_markdown(run: Run, pictures: Sequence[str] = ()) -> str:
    """The run's outcome as GitHub's Markdown.

    Args:
        run: what to tell of.
        pictures: the figures that lie beside it as NAME.svg.
    """
    drawn, fast = figures(run), tables.latency(run)
    details = [tables.layers(run), tables.widths(run), tables.rounds(run)]
    parts = [
        f"# {_escaped(run.start.model)} on {_escaped(run.start.data)}",
        _escaped(tables.sentence(run)),
        _escaped(_status(run)),
        _section(tables.headline(run)),
        _escaped(tables.decided(run)),
        *([_section(fast), _escaped(tables.measured(run))] if fast.rows else []),
        *(_picture(drawn[name]) for name in pictures if name in drawn),
        *(_section(table) for table in details if table.rows),
        _escaped(_origin(run)),
    ]
    if run.finish is not None:
        parts.insert(-1, _again(run))
    return "\n\n".join(parts) + "\n"


def _status(run: Run) -> str:
    if run.finish is None:
        return tables.UNFINISHED
    return (
        f"Finished after {numbers.seconds(run.finish.seconds)} of training: {run.finish.stopped}."
    )


def _again(run: Run) -> str:
    """How to see that it is true."""
    weights = run.start.recipe.get("weights")
    start = ""
    if weights:
        known = f" (SHA-256 {run.start.weights_sha256})" if run.start.weights_sha256 else ""
        start = f", from {_escaped(Path(weights).name + known)}, which has to be there"
    return (
        "## Check it\n\nIn this directory, `rsprune evaluate .` measures the model again, and "
        f"`rsprune compress recipe.toml --out DIR` makes it again{start}."
    )


def _origin(run: Run) -> str:
    """With what, where and when it was made."""
    start, there = run.start, run.start.environment
    known = {
        "seed": start.recipe.get("seed"), "torch": there.get("torch"),
        "processor": there.get("cpu"), "threads": there.get("threads"),
    }  # fmt: skip
    words = [f"{name} {value}" for name, value in known.items() if value is not None]
    return ", ".join([f"rsprune {start.version}", *words, start.time]) + "."


def _section(table: Table) -> str:
    rule = ["---" if i < table.words else "---:" for i in range(len(table.heads))]
    rows = [" | ".join(map(_escaped, map(_text, row))) for row in table.rows]
    lines = (" | ".join(table.heads), " | ".join(rule), *rows)
    return f"## {table.caption}\n\n" + "\n".join(f"| {line} |" for line in lines)


def _picture(figure: Figure) -> str:
    return f"## {figure.title}\n\n![{_escaped(figure.alt)}]({figure.name}.svg)"


def _text(cell: Cell) -> str:
    return cell.text


def _escaped(text: str) -> str:
    """Without what Markdown or HTML would take for a mark, on one line."""
    for mark in "\\`*_|<>[]#":
        text = text.replace(mark, f"&#{ord(mark)};" if mark in "<>|" else f"\\{mark}")
    return " ".join(text.split())
