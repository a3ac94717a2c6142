"""rsprune: compress convolutional networks by sparse optimization."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rsprune.errors import (
    DataError,
    DivergenceError,
    ExportError,
    FileFormatError,
    GradientError,
    InvalidParameterError,
    RecipeError,
    RsPruneError,
    RsPruneWarning,
    RunError,
    StorageError,
    TraceError,
    VerificationError,
)

if TYPE_CHECKING:
    from rsprune.compression import compress, plan_widths
    from rsprune.exporting import export
    from rsprune.metrics.macs import profile
    from rsprune.optim.param_groups import param_groups
    from rsprune.recursion import recursive_prune
    from rsprune.structure.files import load, save
    from rsprune.structure.prune import prune
    from rsprune.structure.trace import trace
    from rsprune.structure.verify import verify

__version__ = version("rsprune")

__all__ = [
    "DataError",
    "DivergenceError",
    "ExportError",
    "FileFormatError",
    "GradientError",
    "InvalidParameterError",
    "RecipeError",
    "RsPruneError",
    "RsPruneWarning",
    "RunError",
    "StorageError",
    "TraceError",
    "VerificationError",
    "__version__",
    "compress",
    "export",
    "load",
    "param_groups",
    "plan_widths",
    "profile",
    "prune",
    "recursive_prune",
    "save",
    "trace",
    "verify",
]

# What is imported when it is first asked for, since whoever only trains does not need it.
_LATER = {
    "compress": "rsprune.compression",
    "export": "rsprune.exporting",
    "load": "rsprune.structure.files",
    "param_groups": "rsprune.optim.param_groups",
    "plan_widths": "rsprune.compression",
    "profile": "rsprune.metrics.macs",
    "prune": "rsprune.structure.prune",
    "recursive_prune": "rsprune.recursion",
    "save": "rsprune.structure.files",
    "trace": "rsprune.structure.trace",
    "verify": "rsprune.structure.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'rsprune' has no attribute {name!r}")
    value = getattr(import_module(_LATER[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
