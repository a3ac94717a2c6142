"""l1-regularised logistic regression with known optima, the acceptance problems of the optimizers.

F = mean logistic loss + 0.01 ||w||_1, no intercept, standardised columns, constant columns dropped,
w0 = 0, batch 32, learning rate x0.1 at 50 % and at 75 % of the epochs. The optima were computed
with liblinear, saga and FISTA, which agree to 1e-16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from torch import Tensor

LAM = 0.01
BATCH = 32


@dataclass(frozen=True)
class Problem:
    """One data set with its optimum, its run length and the bars an optimizer must clear."""

    name: str
    epochs: int
    lr: float  # in units of 1 / L
    optimum: float
    zeros_at_optimum: float  # their share
    max_gap: float
    obprox_sparsity: tuple[float, float]
    prox_sparsity: float

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        return load(self.name)

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.data[0]) // BATCH)

    @property
    def step_size(self) -> float:
        x, _ = self.data
        smoothness = torch.linalg.matrix_norm(x, 2).item() ** 2 / (4 * len(x))
        return self.lr / smoothness

    def loss(self, w: Tensor) -> Tensor:
        x, y = self.data
        return logistic(x, y, w)

    def gap(self, w: Tensor) -> float:
        return (self.loss(w) + LAM * w.abs().sum()).item() / self.optimum - 1


PROBLEMS = (
    Problem("digits", 100, 0.3, 0.3726219238, 0.508, 1e-3, (0.40, 0.56), 0.15),
    Problem("breast_cancer", 300, 1.0, 0.1642463717, 0.633, 5e-3, (0.53, 1.0), 0.30),
    Problem("synthetic", 100, 0.3, 0.5167347989, 0.755, 5e-4, (0.62, 1.0), 0.10),
)


@cache
def load(name: str) -> tuple[Tensor, Tensor]:
    if name == "digits":
        x, y = load_digits(return_X_y=True)
        y = y >= 5
    elif name == "breast_cancer":
        x, y = load_breast_cancer(return_X_y=True)
    else:
        x, y = make_classification(2000, 200, n_informative=10, n_redundant=20, random_state=0)
    x = x[:, x.std(0) > 0]
    x = (x - x.mean(0)) / x.std(0)
    return torch.from_numpy(x), torch.from_numpy(y * 2.0 - 1)


def logistic(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.softplus(-y * (x @ w)).mean()


def gradient(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """The gradient of :func:`logistic`, written out because autograd costs more than the step."""
    return -(x.t() @ (y * torch.sigmoid(-y * (x @ w)))) / len(x)


def batches(problem: Problem, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    x, y = problem.data
    for index in torch.randperm(len(x), generator=generator).split(BATCH):
        yield x[index], y[index]


def solve(
    problem: Problem,
    make: Callable[[list[Tensor], float, int], torch.optim.Optimizer],
    seed: int,
    epochs: int | None = None,
) -> Tensor:
    """Run ``make(params, lr, steps_per_epoch)`` on a problem and return the weights."""
    epochs = epochs or problem.epochs
    w = torch.zeros(problem.data[0].shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = make([w], problem.step_size, problem.steps_per_epoch)
    rates = torch.optim.lr_scheduler.MultiStepLR(optimizer, [epochs // 2, epochs * 3 // 4])
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        if hasattr(optimizer, "snapshot"):
            optimizer.snapshot(lambda: set_gradient(w, *problem.data))
        for x, y in batches(problem, generator):
            optimizer.step(lambda x=x, y=y: set_gradient(w, x, y))
        rates.step()
    return w.detach()


def set_gradient(w: Tensor, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        w.grad = gradient(x, y, w)
    return 0.0
