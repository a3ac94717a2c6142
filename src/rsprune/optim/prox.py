"""Proximal operators and projections: pure functions of tensors, no state.

Everything the optimizers do to a regularised weight is one of these. Scalars may be Python floats
or 0-dim tensors (the compiled optimizers pass tensors, so that a new learning rate does not
recompile).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softshrink

Scalar = float | Tensor


def axpy(scale: Scalar, x: Tensor, y: Tensor) -> Tensor:
    """``y + scale * x``, rounded once.

    ``Tensor.add(alpha=)`` is a fused multiply-add; ``y + scale * x`` becomes one when it is
    compiled with contraction on. Both branches therefore give the same bits.
    """
    if isinstance(scale, Tensor):
        return y + scale * x
    return y.add(x, alpha=scale)


def soft_threshold(v: Tensor, threshold: Scalar) -> Tensor:
    """The proximal operator of ``threshold * ||v||_1``; exact zeros where ``|v| <= threshold``."""
    if isinstance(threshold, Tensor):
        return v - v.clamp(-threshold, threshold)
    return softshrink(v, threshold)  # in half precision, clamp would round the threshold


def orthant_project(v: Tensor, sign: Tensor) -> Tensor:
    """Project ``v`` onto the orthant face of ``sign``: what leaves it, or has sign 0, becomes 0."""
    return torch.where(v * sign <= 0, 0.0, v)


def group_shrink_factor(norm: Tensor, threshold: Scalar) -> Tensor:
    """The factor by which the proximal operator of ``threshold * ||v_g||_2`` shrinks each group."""
    return torch.where(norm <= threshold, 0.0, 1 - threshold / norm)


def in_half_space(inner: Tensor, squared_norm: Tensor, eps: Scalar) -> Tensor:
    """Which groups stay: ``<trial_g, x_g> >= eps ||x_g||^2``, and a zero group never does.

    A group with a NaN stays, so that the damage shows.
    """
    return ~(inner < eps * squared_norm) & (squared_norm != 0)
