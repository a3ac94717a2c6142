"""``write_report``: both reports of a run directory."""

from __future__ import annotations

import os
from pathlib import Path

from rsprune.files import write_atomic
from rsprune.report.html import to_html
from rsprune.report.markdown import to_markdown
from rsprune.report.pictures import PICTURES
from rsprune.report.read import read_run


def write_report(directory: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write ``report.html`` and ``report.md`` into a run directory, and return their paths.

    An unfinished run gets a report of what is there, which says that it is unfinished. The
    Markdown shows the pictures that :func:`~rsprune.report.publish` has drawn beside it.

    Args:
        directory: what ``rsprune compress --out`` wrote; its ``events.jsonl`` is read.

    Raises:
        RunError: if the directory holds no run.
        StorageError: if a report could not be written.
    """
    home = Path(directory)
    run = read_run(home)
    html, markdown = home / "report.html", home / "report.md"
    write_atomic(html, to_html(run))
    pictures = [name for name in PICTURES if (home / f"{name}.svg").is_file()]
    write_atomic(markdown, to_markdown(run, pictures))
    return html, markdown
