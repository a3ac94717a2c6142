"""What each operator does to labels: one small rule per family of operators."""

from rsprune.structure.rules import (  # noqa: F401  (importing a family registers its rules)
    contract,
    create,
    norm,
    pointwise,
    reduce,
    select,
    shape,
    spatial,
)
from rsprune.structure.rules.registry import FUNCTIONS, Call, find_rule

__all__ = ["FUNCTIONS", "Call", "find_rule"]
