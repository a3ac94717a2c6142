"""Hands a model over to other runtimes, as files that compute what it computes."""

from rsprune.exporting.api import FORMATS, Exported, export

__all__ = ["FORMATS", "Exported", "export"]
