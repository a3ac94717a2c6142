"""Against what one would pick instead: the same weights, MACs, epochs and training for everyone.

    python benchmarks/frontier.py --weights resnet20.pt [--seeds 3] [--only rsprune 'tp*']
    python benchmarks/frontier.py --weights resnet56.pt --model resnet56 --compress.target_macs 0.39
    python benchmarks/frontier.py --weights resnet20.pt --table      # what is finished so far

E1 epochs of exploring, in all rounds (--explore.epochs, 6), and E2 of fine-tuning
(--finetune.epochs, 14) are E1 + E2 for everyone, on the same images with the same augmentation,
with one fine-tuning schedule and the same distillation from the full network:

- rsprune: E1 epochs of exploring, a cut that goes by cost (compress.spread), E2 of fine-tuning.
- tp-group-norm: Torch-Pruning's GroupNormPruner on the given weights; fine-tuning for E1 + E2.
- tp-sparse: its sparse learning, regularize() before every step for E1 epochs; a cut; fine-tuning
  for E2.
- uniform-l1: the same share of every block's inner width, the filters with the smallest l1 norms
  first; fine-tuning for E1 + E2.
- cost-l1: the same with rsprune's spread of the cut (spread="cost") and nothing else of it.
- scratch: rsprune's small network with fresh weights, E1 + E2 epochs at --scratch-lr.

Torch-Pruning is used as its own script for CIFAR-10 uses it: global pruning in 400 small steps
until the MACs are met from below, importance by group with p = 2 (scaled by the mean; for sparse
learning by the maximum), --tp-reg 5e-4, --tp-lr 0.01, decays at 60 and 80 %, no weight decay; its
own momentum is plain, here it is Nesterov's as for everyone.

Its graph (1.6.1) takes the channel pad in the shortcuts of a CIFAR ResNet for an elementwise
operator. A network with fewer channels in its residual stream then runs, without an error or a
warning, but its shortcuts add some channels to their neighbours: dropping a channel is not the same
as zeroing it. Hence the layers that write the stream are among its ignored_layers, and both tools
cut inner widths, where its cut does equal the zeroed network. The tests show both.

What is tuned: rsprune's penalty, by the ablation, how it spreads the cut, after a first comparison
in which it came last, and the fine-tuning rate, which its small weights ask for and which everyone
shares. Torch-Pruning has its own script's settings, made for 100 epochs
of sparse learning: sweep --tp-reg, --tp-lr and --finetune.lr, with another --out for each, before
you call it worse.

On two CPU cores a seed of ResNet-20 takes hours with all images; --images 10000 takes a fifth. Each
cell is a run directory under --out: stop the benchmark and start it again as you like. Every
key of a recipe is an option, e.g. --explore.lam 2e-4 --compress.select thinet; --table takes the
same options as the run. No cell looks at test images before its end. Minutes are those of the
training epochs; a cut takes seconds.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import rsprune
from rsprune.compression.reset import reset
from rsprune.engine.directory import alone
from rsprune.engine.recipe import Compress, Dense, Recipe, Training
from rsprune.engine.run import Run, execute
from rsprune.engine.train import Watch
from rsprune.errors import InvalidParameterError, RunError
from rsprune.recursion import PruneResult
from rsprune.recursion.stages import measured

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cells import (
    Cell,
    Done,
    base_recipe,
    changed,
    chosen,
    ending,
    make_parser,
    mean,
    minutes,
    print_table,
    ratio,
    seeded,
    work_off,
)

BASE = {
    "explore.epochs": "6", "explore.lam": "2e-4", "explore.lr": "0.02", "compress.spread": "cost",
    "finetune.epochs": "14",
}  # fmt: skip
STEPS = 400  # of Torch-Pruning, from all channels to none
TUNING = (
    "Tuned for rsprune: its penalty, how it spreads the cut, and the fine-tuning rate, which "
    "everyone shares. Torch-Pruning has the settings of its own script."
)
HEADS = (
    "method", "fewer MACs", "fewer weights", "test accuracy", "each seed", "points lost", "minutes",
)  # fmt: skip


# -- the methods: from a run with its full network to the small one, before fine-tuning --------


def uniform_l1(run: Run, spread: str = "even") -> nn.Module:
    """Every block's inner width shrinks by the same factor; filters with large norms stay."""
    graph = rsprune.trace(run.model, run.example)
    share = run.recipe.compress.target_macs
    widths = rsprune.plan_widths(run.model, graph, target_macs=share, spread=spread).widths
    filters = dict(run.model.named_parameters())
    drop = {}
    for group in graph.prunable:
        norms = filters[f"{group.name}.weight"].detach().abs().flatten(1).sum(1)
        drop[group.name] = norms.argsort()[: group.size - widths[group.name]].tolist()
    return rsprune.prune(run.model, graph, drop)


def tp_group_norm(run: Run) -> nn.Module:
    """Torch-Pruning by magnitude alone."""
    model = copy.deepcopy(run.model)
    return narrowed(model, tp_pruner(model, run, normalizer="mean"), run)


def tp_sparse(run: Run) -> nn.Module:
    """Torch-Pruning after its sparse learning; the recipe's table ``explore`` is that stage's."""
    model, settings = copy.deepcopy(run.model), run.recipe.explore
    pruner = tp_pruner(model, run, normalizer="max", reg=settings.lam)
    hook = register_optimizer_step_pre_hook(lambda *_: pruner.regularize(model))
    try:
        usual = settings.model_dump(include=set(Training.model_fields))
        run.train(model, "explore", Dense(**usual))
    finally:
        hook.remove()
    return narrowed(model, pruner, run)


def tp_pruner(model: nn.Module, run: Run, normalizer: str, **options: Any) -> Any:
    """Torch-Pruning's pruner for the inner widths of ``model``, which it changes in place."""
    import torch_pruning

    plan = rsprune.plan_widths(model, rsprune.trace(model, run.example))
    inner = {group.name for group in plan.groups if group.counted is not None}
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    return torch_pruning.pruner.GroupNormPruner(
        model.eval(),
        run.example,
        importance=torch_pruning.importance.GroupMagnitudeImportance(p=2, normalizer=normalizer),
        global_pruning=True,
        pruning_ratio=1.0,
        iterative_steps=STEPS,
        ignored_layers=[module for name, module in layers if name not in inner],
        **options,
    )


def narrowed(model: nn.Module, pruner: Any, run: Run) -> nn.Module:
    """``model`` after as many steps of the pruner as the target needs."""
    most = most_macs(run)
    model.eval()
    while rsprune.profile(model, run.example).macs > most:
        if pruner.current_step == STEPS:
            raise RunError("Torch-Pruning cannot meet compress.target_macs: choose a larger one.")
        pruner.step()
    return model


def most_macs(run: Run) -> float:
    """What the target allows."""
    return (run.recipe.compress.target_macs or 1.0) * rsprune.profile(run.model, run.example).macs


def scratch(run: Run) -> nn.Module:
    """The network that rsprune made of the same seed, with fresh weights."""
    path = run.directory.parents[1] / "rsprune" / run.directory.name / "model.safetensors"
    if not path.exists():
        raise RunError(f"'{path}' is missing: run rsprune first, for its widths.")
    slim = rsprune.load(run.model, path)
    if rsprune.profile(slim, run.example).macs > most_macs(run):
        raise RunError(f"'{path}' is larger than the target: leave scratch out, with --only.")
    torch.manual_seed(run.recipe.seed)
    reset(slim)
    return slim


METHODS: dict[str, Callable[[Run], nn.Module] | None] = {
    "rsprune": None,  # the engine's own
    "tp-group-norm": tp_group_norm,
    "tp-sparse": tp_sparse,
    "uniform-l1": uniform_l1,
    "cost-l1": partial(uniform_l1, spread="cost"),
    "scratch": scratch,
}


def recipe_for(method: str, base: Recipe, options: argparse.Namespace) -> Recipe:
    """The recipe of a method: all have the same number of epochs."""
    if method == "rsprune":
        return base
    exploring = base.recursion.rounds * base.explore.epochs
    if method == "tp-sparse":
        stage = {
            "epochs": exploring, "lam": options.tp_reg, "lr": options.tp_lr, "weight_decay": 0.0,
            "schedule": "step", "milestones": (0.6, 0.8), "gamma": 0.1,
        }  # fmt: skip
        return changed(base, {f"explore.{key}": value for key, value in stage.items()})
    keys: dict[str, object] = {"finetune.epochs": exploring + base.finetune.epochs}
    if method == "scratch":
        keys["finetune.lr"] = options.scratch_lr
    return changed(base, keys)


# -- training and measuring --------------------------------------------------------------------


def work(cell: Cell, watch: Watch) -> None:
    """Run a cell, or what is left of it."""
    method = METHODS[cell.name]
    if method is None:
        execute(cell.directory, watch)
        return
    with alone(cell.directory):
        run = Run(cell.directory, watch)
        run.begin()
        cut = run.state / "cut.safetensors"
        if not cut.exists():
            rsprune.save(method(run), cut)
        slim = rsprune.load(run.model, cut)
        run.train(slim, "finetune", run.recipe.finetune, teacher=run.model.eval())
        sizes = (measured(model, run.example) for model in (run.model, slim))
        accuracies = run.validate(run.model), run.validate(slim)
        run.finish(PruneResult(slim, (), *accuracies, None, cell.name, *sizes))


def figures(done: Sequence[Done]) -> list[str]:
    """The row of a method, over its finished seeds."""
    found = [one.finish["after"]["test_accuracy"] for one in done]
    lost = mean([one.finish["before"]["test_accuracy"] for one in done]) - mean(found)
    return [
        ratio(done, "macs"),
        ratio(done, "weights"),
        f"{mean(found):.2%}",
        ", ".join(f"{accuracy:.2%}" for accuracy in found),
        f"{100 * lost:.2f}",
        minutes(done),
    ]


def check_peer(methods: Sequence[str]) -> None:
    """Say what is missing before hours of training."""
    if any(name.startswith("tp-") for name in methods) and not find_spec("torch_pruning"):
        others = " ".join(name for name in METHODS if not name.startswith("tp-"))
        raise RunError(
            "Torch-Pruning is not installed: pip install torch-pruning, or leave its methods out "
            f"with --only {others}."
        )


def check_comparable(recipe: Recipe) -> None:
    """Refuse what only rsprune would obey, or gain from."""
    cut = recipe.compress
    if recipe.finetune.views:
        raise InvalidParameterError(
            "the benchmark", "finetune.views", "0", recipe.finetune.views,
            "Those who only fine-tune would see fewer different crops than those who explore.",
        )  # fmt: skip
    if cut.unit == "layer":
        raise InvalidParameterError(
            "the benchmark", "compress.unit", "auto or block", "layer",
            "All methods cut the inner widths of blocks only.",
        )  # fmt: skip
    if cut.target_macs is None:
        raise InvalidParameterError(
            "the benchmark", "compress.target_macs", "a share of the MACs", None,
            "All methods cut to the same MACs.",
        )  # fmt: skip
    usual = Compress()  # type: ignore[call-arg]
    for key in ("target_params", "target_latency", "round_to"):
        value = getattr(cut, key)
        if value != getattr(usual, key):
            raise InvalidParameterError(
                "the benchmark", f"compress.{key}", "left out", value,
                "The other methods cannot cut to it.",
            )  # fmt: skip


def cells_of(methods: Sequence[str], base: Recipe, options: argparse.Namespace) -> list[Cell]:
    """The cells of some methods: each once for every seed."""
    recipes = {method: recipe_for(method, base, options) for method in methods}
    return seeded(recipes, options.out, options.seeds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, "runs/frontier", 50_000)
    add = parser.add_argument
    add("--tp-reg", type=float, default=5e-4, help="Torch-Pruning's penalty (5e-4)")
    add("--tp-lr", type=float, default=0.01, help="learning rate of its sparse learning (0.01)")
    add("--scratch-lr", type=float, default=0.1, help="learning rate from scratch (0.1)")
    options, rest = parser.parse_known_args(arguments)
    with ending():
        base = base_recipe(options, rest, BASE)
        methods = chosen(METHODS, options.only)
        check_peer(methods)
        check_comparable(base)
        cells = cells_of(methods, base, options)
        widths = cells_of(["rsprune"], base, options) if "scratch" in methods else []
        for cell in [*cells, *widths]:
            cell.check()
        if not options.table:
            work_off(cells, work)
        rows = {name: [cell for cell in cells if cell.name == name] for name in methods}
        print_table(HEADS, rows, figures)
        print(TUNING)


if __name__ == "__main__":
    main()
