"""The optimizers on convex problems with known optima: how near they come, how many zeros.

    python benchmarks/convex.py [--seeds 3]

The problems are those of tests/convex.py: l1-regularised logistic regression. With momentum 0.9 the
learning rate is a tenth. Gap is F / F* - 1, zeros the share of exact zeros; means over the seeds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from rsprune.optim import RDA, OBProxSG, ProxSG, ProxSVRG

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.convex import LAM, PROBLEMS, solve

Maker = Callable[[list[Tensor], float, int], torch.optim.Optimizer]


def makers(momentum: float) -> dict[str, Maker]:
    share = 1 - momentum
    settings = {"lam": LAM, "momentum": momentum}
    return {
        "Prox-SG": lambda params, lr, _: ProxSG(params, lr * share, **settings),
        "OBProx-SG": lambda params, lr, epoch: OBProxSG(
            params, lr * share, prox_steps=5 * epoch, **settings
        ),
        "RDA": lambda params, _lr, _n: RDA(params, gamma=1 / share, **settings),
        "Prox-SVRG": lambda params, lr, _: ProxSVRG(params, lr * share, **settings),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs per method")
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    names = [problem.name for problem in PROBLEMS]
    print(f"torch {torch.__version__}, {seeds} seeds\n")
    print("| method | momentum |" + "".join(f" {n}: gap | zeros |" for n in names))
    print("|---|---|" + "---|---|" * len(names))
    for momentum in (0.0, 0.9):
        for method, make in makers(momentum).items():
            cells = []
            for problem in PROBLEMS:
                found = [solve(problem, make, seed) for seed in range(seeds)]
                gap = statistics.mean(problem.gap(w) for w in found)
                zeros = statistics.mean((w == 0).double().mean().item() for w in found)
                cells.append(f" {gap:.1e} | {zeros:.3f} |")
            print(f"| {method} | {momentum:g} |" + "".join(cells), flush=True)
    print("| the optimum | |" + "".join(f" 0 | {p.zeros_at_optimum} |" for p in PROBLEMS))


if __name__ == "__main__":
    main()
