"""Learning rates as functions of the share of a training that is done."""

from __future__ import annotations

import math

from rsprune.engine.recipe import Training

_START, _END = 1 / 25, 1e-4  # of the one-cycle schedule, as fractions of the highest rate
_RISE = 0.3


def learning_rate(settings: Training, step: int, total: int) -> float:
    """The learning rate of step ``step`` of ``total``."""
    done = step / total
    if settings.warmup and done < settings.warmup:
        return settings.lr * min(1.0, (step + 1) / (settings.warmup * total))
    left = (done - settings.warmup) / (1 - settings.warmup)  # share of what follows the warm-up
    return settings.lr * _factor(settings, left)


def _factor(settings: Training, done: float) -> float:
    if settings.schedule == "cosine":
        return _cosine(1.0, 0.0, done)
    if settings.schedule == "step":
        return settings.gamma ** sum(done >= at for at in settings.milestones)
    if settings.schedule == "one-cycle":
        if done < _RISE:
            return _cosine(_START, 1.0, done / _RISE)
        return _cosine(1.0, _END, (done - _RISE) / (1 - _RISE))
    return 1.0


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
