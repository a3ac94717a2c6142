"""What makes the difference: one change at a time, at equal budgets, in one table.

    python benchmarks/ablation.py --weights resnet20.pt [--only base 'select*'] [--seeds 1]
    python benchmarks/ablation.py --weights resnet20.pt --table      # what is finished so far

ResNet-20 on CIFAR-10 from trained weights, to half of its MACs, with 12,500 of the training images
(a fifth of them for validation; --images takes another number) and all 10,000 test images. Each
cell is a run in its own directory under --out: stop the benchmark and start it again as you like.
Every key of a recipe changes the base, e.g. --explore.lam 2e-4 --finetune.epochs 12 --compile true;
--table takes the same options as the run.

All cells have the same number of epochs: several rounds share those of exploring, and the zeros are
those of the last. Some changes are not all that they seem:

- Epsilon, the floor of the rule's widths, is compared without a target, which would scale it away,
  and at 5 times the base's lambda, so that there are zeros enough for it.
- Selection at random is one draw, the same for every seed.
- HSPG's lambda is 20 times the base's, since it acts on the norm of a filter and not on a weight.
  With zero-groups, and 70 times, the units that became zero go, without a target: look at the MACs
  it reached.
- RDA has no learning rate; its gamma is chosen so that its penalty reaches as far as the base's in
  the 380 steps of six epochs of 8,000 images. Other lengths or rates want another gamma.
- A network that is initialised anew has the learning rate and the epochs of a fine-tuning.

Choices are made on validation accuracy; test accuracy is reported. Weights that were trained on all
training images have seen the validation images too: that column says which cell is better, not how
good it is. Minutes are those of the training epochs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cells import (
    Done,
    base_recipe,
    changed,
    chosen,
    ending,
    make_parser,
    mean,
    minutes,
    percent,
    print_table,
    ratio,
    seeded,
    work_off,
)
from rsprune.engine.recipe import RATIO_ONLY, Compress, Explore, Recipe
from rsprune.engine.run import execute
from rsprune.errors import InvalidParameterError

BASE = {
    "loading.validation": "0.2",
    "explore.epochs": "6",  # one, two and three rounds share them
    "explore.lam": "1e-3",
    "explore.lr": "0.02",
    "compress.unit": "block",
    "compress.spread": "even",
    "finetune.epochs": "6",
}
ROUNDS = (1, 2, 3)
LAMBDAS = (0.2, 0.5, 1, 2, 5)  # times the base's
EPSILON_TIMES = 5  # the penalty at which a floor has something to hold
HSPG_TIMES, ZERO_GROUPS_TIMES = 20, 70
RDA_GAMMA = 5.0  # whose threshold, sqrt(steps) / gamma, then grows as far as the base's lr * steps
HEADS = (
    "change", "zeros after exploring", "validation accuracy", "test accuracy", "fewer MACs",
    "fewer weights", "minutes",
)  # fmt: skip
Change = Mapping[str, object]  # values by key of the recipe


def changes(base: Recipe) -> dict[str, dict[str, Change]]:
    """What is changed, by factor and value; some value of a factor may be the base's own."""
    explore = base.explore
    odd = [n for n in ROUNDS if explore.epochs % n]
    if odd:
        raise InvalidParameterError(
            "the ablation", "explore.epochs", f"divisible by {odd[0]}", explore.epochs,
            "The rounds share the epochs equally.",
        )  # fmt: skip
    lambdas = [explore.lam * times for times in LAMBDAS]
    rates = (base.finetune.lr / 3, base.finetune.lr, base.finetune.lr * 3)
    return {
        "lambda": {f"{lam:g}": {"explore.lam": lam} for lam in lambdas},
        "rounds": {
            str(n): {
                "recursion.rounds": n,
                "explore.epochs": explore.epochs // n,
                "explore.prox_epochs": explore.prox_epochs / n,
                **({"compress.spread": "even"} if n > 1 else {}),  # by cost is for one cut
            }
            for n in ROUNDS
        },
        "epsilon": {
            f"{value:g}-alone": {
                "compress.epsilon": value,
                "compress.target_macs": None,
                "compress.spread": "even",  # by cost is for a target
                "explore.lam": EPSILON_TIMES * explore.lam,
            }
            for value in (0.05, 0.1, 0.3)
        },
        "select": {
            name: {"compress.select": name}
            for name in ("magnitude", "nonzeros", "thinet", "random")
        },
        "weights": {"inherited": {"compress.inherit": True}, "anew": {"compress.inherit": False}},
        "optimizer": _optimizers(explore),
        "prox-share": _shares(explore),
        "explore-lr": {
            f"{rate:g}": {"explore.lr": rate}
            for rate in (explore.lr / 2, explore.lr, explore.lr * 2.5)
        },
        "finetune-lr": {f"{rate:g}": {"finetune.lr": rate} for rate in rates},
        "distillation": {
            "on": {"finetune.distill": base.finetune.distill or 0.5},
            "0.9": {"finetune.distill": 0.9},
            "off": {"finetune.distill": 0.0, "finetune.views": 0},
        },
        "unit": {name: {"compress.unit": name} for name in ("block", "layer")},
        "spread": {
            "even": {"compress.spread": "even"},
            "cost": {"compress.spread": "cost"},
            "cost-layer": {"compress.spread": "cost", "compress.unit": "layer"},
        },
    }  # fmt: skip


def _optimizers(explore: Explore) -> dict[str, Change]:
    hspg = {"explore.optimizer": "hspg", "explore.lam": HSPG_TIMES * explore.lam}
    alone = {**hspg, "explore.lam": ZERO_GROUPS_TIMES * explore.lam}
    usual = Compress()  # type: ignore[call-arg]
    unaimed = {f"compress.{key}": getattr(usual, key) for key in (*RATIO_ONLY, "spread")}
    return {
        **{name: {"explore.optimizer": name} for name in ("obprox-sg", "prox-sg")},
        "rda": {"explore.optimizer": "rda", "explore.dual_gamma": RDA_GAMMA},
        "hspg": hspg,
        "hspg-zero-groups": {**alone, **unaimed, "compress.mode": "zero-groups"},
    }


def _shares(explore: Explore) -> dict[str, Change]:
    """Of the proximal steps: first, or in turns."""
    turn = explore.epochs / 6
    once = {
        f"{100 * part:g}": {
            "explore.prox_epochs": part * explore.epochs, "explore.orthant_epochs": 0.0,
        }
        for part in (0.25, 0.5, 0.75)
    }  # fmt: skip
    return {
        **once, "alternating": {"explore.prox_epochs": turn, "explore.orthant_epochs": turn},
    }  # fmt: skip


def rows(base: Recipe) -> dict[str, tuple[str, Recipe]]:
    """For every row of the table, the cell that it shows and that cell's recipe."""
    found = {"base": ("base", base)}
    cells = {base.to_toml(): "base"}
    for factor, values in changes(base).items():
        for value, change in values.items():
            row, recipe = f"{factor}-{value}", changed(base, change)
            found[row] = cells.setdefault(recipe.to_toml(), row), recipe
    return found


def figures(done: Sequence[Done]) -> list[str]:
    """The row of a cell, over its finished seeds."""
    zeros = [one.zeros for one in done if one.zeros is not None]
    return [
        f"{mean(zeros):.1%}",
        percent(done, "validation_accuracy"),
        percent(done, "test_accuracy"),
        ratio(done, "macs"),
        ratio(done, "weights"),
        minutes(done),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, "runs/ablation", 12_500)
    options, rest = parser.parse_known_args(arguments)
    with ending():
        table = rows(base_recipe(options, rest, BASE))
        table = {row: table[row] for row in chosen(table, options.only)}
        cells = seeded(dict(table.values()), options.out, options.seeds)
        for cell in cells:
            cell.check()
        if not options.table:
            work_off(cells, lambda cell, display: execute(cell.directory, display))
        seeds = {name: [cell for cell in cells if cell.name == name] for name, _ in table.values()}
        labelled = {
            row if row == name else f"{row} (= {name})": seeds[name]
            for row, (name, _) in table.items()
        }
        print_table(HEADS, labelled, figures)


if __name__ == "__main__":
    main()
