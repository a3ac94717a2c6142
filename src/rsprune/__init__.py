"""rsprune: compress convolutional networks by sparse optimization."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from rsprune.errors import (
    DataError,
    FileFormatError,
    GradientError,
    InvalidParameterError,
    RsPruneError,
    RsPruneWarning,
    TraceError,
    VerificationError,
)
from rsprune.optim.param_groups import param_groups

if TYPE_CHECKING:
    from rsprune.metrics.macs import profile
    from rsprune.structure.files import load, save
    from rsprune.structure.prune import prune
    from rsprune.structure.trace import trace
    from rsprune.structure.verify import verify

__version__ = version("rsprune")

__all__ = [
    "DataError",
    "FileFormatError",
    "GradientError",
    "InvalidParameterError",
    "RsPruneError",
    "RsPruneWarning",
    "TraceError",
    "VerificationError",
    "__version__",
    "load",
    "param_groups",
    "profile",
    "prune",
    "save",
    "trace",
    "verify",
]

# What is imported when it is first asked for, since whoever only trains does not need it.
_LATER = {
    "load": "rsprune.structure.files",
    "profile": "rsprune.metrics.macs",
    "prune": "rsprune.structure.prune",
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
