"""Slow literal versions of RDA, Prox-SVRG and HSPG, written from the formulas, group by group."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def soft(v: Tensor, t: float) -> Tensor:
    new = torch.zeros_like(v)
    new[v > t] = v[v > t] - t
    new[v < -t] = v[v < -t] + t
    return new


class ReferenceRDA:
    """w <- soft(w0 - (sqrt(k)/gamma) mean_grad, (sqrt(k)/gamma) lam)."""

    def __init__(self, w: Tensor, lam: float, gamma: float) -> None:
        self.w, self.start, self.total = w, w.clone(), torch.zeros_like(w)
        self.lam, self.gamma, self.k = lam, gamma, 0

    def step(self, grad: Tensor) -> None:
        self.k += 1
        self.total = self.total + grad
        root = math.sqrt(self.k)
        v = self.start.add(self.total, alpha=-1 / (self.gamma * root))
        self.w = soft(v, root / self.gamma * self.lam)


class ReferenceProxSVRG:
    """v = g(w) - g(w_ref) + full(w_ref); w <- soft(w - a v, a lam)."""

    def __init__(self, w: Tensor, lr: float, lam: float) -> None:
        self.w, self.lr, self.lam = w, lr, lam

    def snapshot(self, full_grad: Tensor) -> None:
        self.reference, self.full = self.w, full_grad

    def step(self, grad: Tensor, reference_grad: Tensor) -> None:
        v = grad - reference_grad + self.full
        self.w = soft(self.w.add(v, alpha=-self.lr), self.lr * self.lam)


class ReferenceHSPG:
    """One flat vector, groups as lists of indices; indices in no group take SGD steps."""

    def __init__(
        self,
        x: Tensor,
        groups: Sequence[Sequence[int]],
        lr: float,
        lam: float,
        prox: int,
        eps: float,
    ) -> None:
        self.x, self.groups, self.lr, self.lam = x.clone(), groups, lr, lam
        self.prox, self.eps, self.k = prox, eps, 0

    def step(self, grad: Tensor) -> None:
        new = self.x - self.lr * grad
        for group in self.groups:
            index = torch.tensor(group)
            x, g = self.x[index], grad[index]
            norm = float(sum(v * v for v in x.tolist())) ** 0.5
            if self.k < self.prox:
                y = x - self.lr * g
                length = float(sum(v * v for v in y.tolist())) ** 0.5
                new[index] = max(0.0, 1 - self.lr * self.lam / length) * y if length else 0 * y
            elif norm == 0:
                new[index] = 0
            else:
                trial = x - self.lr * (g + self.lam * x / norm)
                inner = sum(a * b for a, b in zip(trial.tolist(), x.tolist(), strict=True))
                new[index] = trial if inner >= self.eps * norm**2 else torch.zeros_like(trial)
        self.x = new
        self.k += 1
