"""rsprune: compress convolutional networks by sparse optimization."""

from importlib.metadata import version

from rsprune.errors import (
    DataError,
    GradientError,
    InvalidParameterError,
    RsPruneError,
    RsPruneWarning,
)
from rsprune.optim.param_groups import param_groups

__version__ = version("rsprune")

__all__ = [
    "DataError",
    "GradientError",
    "InvalidParameterError",
    "RsPruneError",
    "RsPruneWarning",
    "__version__",
    "param_groups",
]
