"""Sparse optimizers: drop-in replacements for ``torch.optim.SGD`` that produce exact zeros."""

from rsprune.optim.hspg import HSPG
from rsprune.optim.obprox_sg import OBProxSG
from rsprune.optim.param_groups import param_groups
from rsprune.optim.prox_sg import ProxSG
from rsprune.optim.prox_svrg import ProxSVRG
from rsprune.optim.rda import RDA
from rsprune.optim.schedule import PhaseSchedule, phase_schedule

__all__ = [
    "HSPG",
    "RDA",
    "OBProxSG",
    "PhaseSchedule",
    "ProxSG",
    "ProxSVRG",
    "param_groups",
    "phase_schedule",
]
