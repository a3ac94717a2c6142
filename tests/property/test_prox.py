"""The proximal operators satisfy the identities that define them."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rsprune.optim.prox import (
    axpy,
    group_shrink_factor,
    in_half_space,
    orthant_project,
    soft_threshold,
)

numbers = st.floats(-1e3, 1e3, allow_nan=False, width=32)
vectors = st.lists(numbers, min_size=1, max_size=20).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)
thresholds = st.one_of(st.just(0.0), st.floats(1e-6, 1e3))


@given(vectors, thresholds)
def test_soft_threshold_minimises_its_objective(v: Tensor, t: float) -> None:
    """Prox of t|.|: v - x is t sign(x) where x != 0 and within [-t, t] where x = 0."""
    x = soft_threshold(v, t)
    residual = v - x
    assert (residual.abs() <= t * (1 + 1e-12)).all()
    moved = x != 0
    # v - t is rounded at the scale of v
    slack = 1e-12 * (1 + v.abs())
    assert ((residual - t * x.sign()).abs() <= slack)[moved].all()
    assert torch.equal(x == 0, v.abs() <= t)


@given(vectors, thresholds)
def test_moreau_decomposition(v: Tensor, t: float) -> None:
    """prox + projection onto the dual ball give the vector back."""
    assert torch.allclose(soft_threshold(v, t) + v.clamp(-t, t), v)


@given(vectors, vectors, thresholds)
def test_soft_threshold_is_nonexpansive_and_odd(v: Tensor, u: Tensor, t: float) -> None:
    n = min(len(v), len(u))
    v, u = v[:n], u[:n]
    distance = (soft_threshold(v, t) - soft_threshold(u, t)).abs()
    assert (distance <= (v - u).abs() + 1e-12 * (v.abs() + u.abs())).all()
    assert torch.equal(soft_threshold(-v, t), -soft_threshold(v, t))


@given(vectors)
def test_threshold_zero_is_the_identity(v: Tensor) -> None:
    """Also at v = 0, where v (1 - t/|v|) would be NaN."""
    assert torch.equal(soft_threshold(v, 0.0), v)


def test_soft_threshold_keeps_nan() -> None:
    assert soft_threshold(torch.tensor([math.nan]), 1.0).isnan().all()


@given(vectors, vectors)
def test_orthant_projection_lands_on_the_face(v: Tensor, s: Tensor) -> None:
    n = min(len(v), len(s))
    v, s = v[:n], s[:n].sign()
    x = orthant_project(v, s)
    assert (x * s >= 0).all()
    assert (x[s == 0] == 0).all()
    assert torch.equal(x[v * s > 0], v[v * s > 0])
    assert torch.equal(orthant_project(x, s), x)


@given(vectors, thresholds)
def test_group_prox_minimises_its_objective(v: Tensor, t: float) -> None:
    """||v - x|| <= t, and v - x is t x / ||x|| where x is not zero."""
    norm = v.norm()
    x = group_shrink_factor(norm, t) * v
    assert (v - x).norm() <= t * (1 + 1e-9) + 1e-12
    if x.norm() > 0:
        assert torch.allclose(v - x, t * x / x.norm(), rtol=1e-6, atol=1e-9)
    else:
        assert norm <= t or norm == 0


@given(vectors, st.floats(0, 0.99))
def test_half_space_keeps_the_point_itself_and_never_its_opposite(x: Tensor, eps: float) -> None:
    square = (x * x).sum()
    assert bool(in_half_space(square, square, eps)) == (square > 0)
    assert not in_half_space(-square, square, eps)


@given(vectors, vectors, numbers)
def test_axpy_is_the_same_for_floats_and_tensors(x: Tensor, y: Tensor, scale: float) -> None:
    """Eager tensors round twice; the two agree to that rounding."""
    n = min(len(x), len(y))
    as_tensor = torch.tensor(scale, dtype=torch.float64)
    torch.testing.assert_close(axpy(scale, x[:n], y[:n]), axpy(as_tensor, x[:n], y[:n]))
