"""Turns sparsity into widths and picks the channels that survive (paper, Algorithms 2 and 3)."""

from rsprune.compression.compress import Compressed, compress, compress_with_plan
from rsprune.compression.plan import GroupPlan, LayerTime, PlanTime, WidthPlan
from rsprune.compression.sparsity import Sparsity, layer_sparsity
from rsprune.compression.widths import plan_widths
from rsprune.compression.zero import unit_slots

__all__ = [
    "Compressed",
    "GroupPlan",
    "LayerTime",
    "PlanTime",
    "Sparsity",
    "WidthPlan",
    "compress",
    "compress_with_plan",
    "layer_sparsity",
    "plan_widths",
    "unit_slots",
]
