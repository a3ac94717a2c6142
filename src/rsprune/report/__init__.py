"""Shows what happened in a run: one self-contained HTML page, and Markdown for pull requests."""

from rsprune.report.write import write_report

__all__ = ["write_report"]
