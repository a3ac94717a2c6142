"""The report in Markdown, for pull requests: the tables, no figures."""

from __future__ import annotations

from rsprune.report import numbers, tables
from rsprune.report.run import Run
from rsprune.report.tables import Cell, Table


def to_markdown(run: Run) -> str:
    """The run's outcome as GitHub's Markdown."""
    shown = [tables.headline(run), tables.layers(run), tables.widths(run), tables.rounds(run)]
    parts = [
        f"# {_escaped(run.start.model)} on {_escaped(run.start.data)}",
        _escaped(tables.sentence(run)),
        _escaped(_status(run)),
        *(_section(table) for table in shown if table.rows),
        f"{tables.DECIDED} rsprune {_escaped(run.start.version)}, {_escaped(run.start.time)}.",
    ]
    return "\n\n".join(parts) + "\n"


def _status(run: Run) -> str:
    if run.finish is None:
        return tables.UNFINISHED
    return (
        f"Finished after {numbers.seconds(run.finish.seconds)} of training: {run.finish.stopped}."
    )


def _section(table: Table) -> str:
    rule = ["---" if i < table.words else "---:" for i in range(len(table.heads))]
    rows = [" | ".join(map(_escaped, map(_text, row))) for row in table.rows]
    lines = (" | ".join(table.heads), " | ".join(rule), *rows)
    return f"## {table.caption}\n\n" + "\n".join(f"| {line} |" for line in lines)


def _text(cell: Cell) -> str:
    return cell.text


def _escaped(text: str) -> str:
    """Without what Markdown or HTML would take for a mark, on one line."""
    for mark in "\\`*_|<>[]#":
        text = text.replace(mark, f"&#{ord(mark)};" if mark in "<>|" else f"\\{mark}")
    return " ".join(text.split())
