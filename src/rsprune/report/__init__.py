"""Shows what happened in a run: one self-contained HTML page, and Markdown for pull requests.

A finished run can be published: as a small directory that anyone can check.
"""

from rsprune.report.publish import publish
from rsprune.report.write import write_report

__all__ = ["publish", "write_report"]
