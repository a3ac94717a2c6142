"""Repeats sparse training and cutting until it stops paying, then fine-tunes (Algorithm 1)."""

from rsprune.recursion.loop import recursive_prune
from rsprune.recursion.penalty import LAMBDA_RULES, next_penalty
from rsprune.recursion.result import PruneResult, Round, Size, Width

__all__ = [
    "LAMBDA_RULES",
    "PruneResult",
    "Round",
    "Size",
    "Width",
    "next_penalty",
    "recursive_prune",
]
