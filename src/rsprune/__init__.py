"""rsprune: compress convolutional networks by sparse optimization."""

from importlib.metadata import version

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
from rsprune.metrics.macs import profile
from rsprune.optim.param_groups import param_groups
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
