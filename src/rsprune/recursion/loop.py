"""``rsprune.recursive_prune``: the recursion around the user's own training loops (Algorithm 1).

"Neural Network Compression via Sparse Optimization", Algorithm 1. Every stage goes through
:class:`State`, which knows the stages of an earlier, interrupted call: the code reads as if the
rounds always ran from the first to the last.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rsprune.compression.activations import as_runs
from rsprune.errors import InvalidParameterError, RsPruneWarning
from rsprune.recursion.callables import OWNER, check_callable
from rsprune.recursion.penalty import next_penalty
from rsprune.recursion.remarks import remarks
from rsprune.recursion.result import PruneResult, Round, Size
from rsprune.recursion.settings import MEASURING, Settings
from rsprune.recursion.stages import (
    Candidate,
    Evaluate,
    Explore,
    Finetune,
    OnEvent,
    Stages,
    cut_model,
    measured,
)
from rsprune.recursion.state import GIVEN, State
from rsprune.recursion.stopping import Rules, Seen
from rsprune.shadow import bind, check_model, undisturbed


def recursive_prune(
    model: nn.Module,
    example_inputs: Any,
    *,
    explore: Explore,
    evaluate: Evaluate,
    finetune: Finetune | None = None,
    lam: float = 1e-4,
    rounds: int = 3,
    lambda_rule: str = "paper",
    tolerance: float = 0.01,
    flat: float = 0.02,
    epsilon: float = 0.1,
    unit: str = "auto",
    round_to: int | str = 1,
    spread: str = "auto",
    target_macs: float | None = None,
    target_params: float | None = None,
    target_latency: float | None = None,
    runtime: str = "torch",
    batch: int = 1,
    threads: int | None = None,
    select: str = "magnitude",
    inherit: bool = True,
    mode: str = "ratio",
    batches: Iterable[Any] | None = None,
    directory: str | os.PathLike[str] | None = None,
    on_event: OnEvent | None = None,
) -> PruneResult:
    """Train sparse, cut, and repeat until it stops paying; then fine-tune (Algorithm 1).

    The smallest model whose accuracy stays within the tolerance is returned; if there is none, the
    most accurate one, with a warning. The given model is left as it was.

    Args:
        model: the trained, full-size model.
        example_inputs: one batch, as for :func:`rsprune.trace`.
        explore: called with a model and its penalty; trains it sparse, with any optimizer of
            ``rsprune.optim``. It trains in place and returns None, or returns the trained model.
        evaluate: called with a model; returns its accuracy, or any number that is higher for a
            better model, on validation data.
        finetune: called with a compressed model; trains it without penalty, as ``explore`` does.
            None: models are taken as they are.
        lam: the penalty of the first round.
        rounds: the most rounds; 1 is the paper's own setting.
        lambda_rule: how the penalty changes, ``"paper"`` (with the number of weights),
            ``"constant"`` or ``"inverse"``.
        tolerance: how far the accuracy may fall below that of the given model.
        flat: the rounds end when sparsity and size both changed by less than this, relatively.
        epsilon, unit, round_to, spread, select, inherit, mode, batches: as in
            :func:`rsprune.compress`, but that ``spread="auto"`` is even for several rounds.
        target_macs, target_params, target_latency: fractions of the given model, which the last
            round's cut meets. With a target all rounds run: neither flatness nor accuracy ends
            them.
        runtime, batch, threads: where times are measured, as in :func:`rsprune.plan_widths`.
        directory: keep what was done there. The same call with the same directory goes on after
            the last stage that was finished, and ends as if it had never been interrupted.
        on_event: called after each stage with a dict that JSON can hold; for stages which an
            earlier call did, too, with ``"resumed": True``.

    Raises:
        RunError: if the directory holds a recursion with other arguments.
        StorageError: if the directory cannot be written to; what was done is kept.
    """
    check_model(OWNER, model)
    check_callable("explore", explore, "lambda model, lam: train(model, lam)")
    check_callable("evaluate", evaluate, "lambda model: accuracy(model, validation_data)")
    if finetune is not None:
        check_callable("finetune", finetune, "lambda model: train(model)")
    if on_event is not None:
        check_callable("on_event", on_event, "print")
    if spread == "auto" and (rounds != 1 or target_macs is None):
        spread = "even"  # by cost, every round would cut anew where weights cost most
    settings = Settings(
        lam, rounds, lambda_rule, tolerance, flat, target_macs, target_params, target_latency,
        cut={
            "epsilon": epsilon, "unit": unit, "round_to": round_to, "spread": spread,
            "select": select, "inherit": inherit, "mode": mode, "runtime": runtime, "batch": batch,
            "threads": threads,
        },
    )  # fmt: skip
    batches = list(batches) if isinstance(batches, Iterator) else batches  # read in every round
    full = _rehearsed(model, example_inputs, settings, batches)
    idle = set() if settings.measures else set(MEASURING)
    arguments = {
        **{name: value for name, value in asdict(settings).items() if name != "cut"},
        **{name: value for name, value in settings.cut.items() if name not in idle},
        "example_inputs": _described(example_inputs),
        "finetune": finetune is not None,
        "batches": batches is not None,
    }
    stages = Stages(
        State(model, arguments, directory), settings, example_inputs, batches, full,
        explore, evaluate, finetune, on_event,
    )  # fmt: skip
    result, remarkable = _run(stages)
    if remarkable:
        warnings.warn(result.stopped, RsPruneWarning, stacklevel=2)
    return result


def _run(stages: Stages) -> tuple[PruneResult, bool]:
    """Algorithm 1: the result, and whether it deserves a warning."""
    state, settings = stages.state, stages.settings
    stages.check_times()
    rules = Rules(stages.baseline(), settings.tolerance, settings.flat)
    history, stopped = _rounds(stages, rules)  # Alg. 1, lines 2 to 6
    history, best = _choose(stages, history, rules)  # line 7
    notes = remarks(history, best, rules, settings)
    result = PruneResult(
        model=state.fetch(best.stage if best else GIVEN),
        history=tuple(history),
        baseline=rules.baseline,
        accuracy=best.accuracy if best else rules.baseline,
        best=best.round if best else None,
        stopped=" ".join([f"{stopped}.", *notes]) if notes else stopped,
        before=stages.full,
        after=best.size if best else stages.full,
    )
    outcome = {"best": result.best, "accuracy": result.accuracy, "stopped": result.stopped}
    stages.tell("done", {"event": "done", **state.once("done", lambda: outcome)})
    return result, bool(notes)


def _rounds(stages: Stages, rules: Rules) -> tuple[list[Round], str]:
    """The rounds, and why they ended."""
    settings, state = stages.settings, stages.state
    history: list[Round] = []
    lam, size, time = float(settings.lam), stages.full, 1.0
    for t in range(settings.rounds):  # Alg. 1, line 2
        history.append(stages.explored(t, lam, size))  # line 3
        stopped = _why_stop(history, rules, settings)
        if stopped is not None:
            stages.tell(f"round-{t}.explored", history[t].event())
            return history, f"round {t + 1}: {stopped}"  # people count from 1
        state.drop(f"round-{t - 1}.cut")  # after sparse training it is the better candidate
        history[t], after = stages.cut(history[t], time)  # line 4
        time = history[t].latency or time
        if t == 0 or settings.aimed:
            state.drop(f"round-{t}.explored")  # not a candidate
        lam = next_penalty(
            settings.lambda_rule, lam, before=size.weights, after=after.weights
        )  # line 5
        size = after
    rounds = settings.rounds
    return history, f"{rounds} rounds were asked for" if rounds > 1 else "1 round was asked for"


def _why_stop(history: list[Round], rules: Rules, settings: Settings) -> str | None:
    """Why there is no cut after the last round's sparse training; None if there is."""
    if history[-1].diverged is not None:
        return f"sparse training diverged: {history[-1].diverged}"
    if settings.aimed:
        return None  # the size is given: only the last cut has it
    return rules.why_stop(
        [Seen(one.accuracy or 0.0, one.sparsity or 0.0, one.before.weights) for one in history]
    )


def _choose(
    stages: Stages, history: list[Round], rules: Rules
) -> tuple[list[Round], Candidate | None]:
    """Fine-tune the smallest model; while accuracy is lost, the next larger one.

    The models are M^1 to M^T, as sparse training left them; the last, or one that lost accuracy in
    sparse training, as it was cut. If all lose accuracy, the most accurate one is chosen.
    """
    best: Candidate | None = None
    tuned, tried = list(history), set[Size | None]()
    cuts = [one for one in history if one.after is not None]
    for made in reversed(cuts[-1:] if stages.settings.aimed else cuts):
        if made.after in tried:
            continue  # not a larger model, only an earlier one
        tried.add(made.after)
        following = history[made.round + 1 : made.round + 2]
        explored = next((one for one in following if one.diverged is None), None)
        found = stages.tuned(made, explored, rules)
        tuned[made.round] = replace(made, finetuned=found.finetuned)
        if best is None or found.accuracy > best.accuracy:
            best = found
        if not rules.regressed(found.accuracy):
            break
    return tuned, best


def _rehearsed(
    model: nn.Module, inputs: Any, settings: Settings, batches: Iterable[Any] | None
) -> Size:
    """The size of the model, once a cut of it went well: mistakes show before any training."""
    full = measured(model, inputs)
    if full.weights == 0 or full.macs == 0:
        raise InvalidParameterError(
            OWNER, "model", "a module with convolution or linear layers", type(model).__name__,
            "Pass the network itself, not a part or a wrapper without layers.",
        )  # fmt: skip
    options = {**settings.cut, "batches": batches, **settings.targets(0, full, full)}
    ratio = options["mode"] == "ratio"
    if ratio:  # to measure takes time: the first stage does it, once
        options |= {"target_latency": None, "round_to": settings.options().step, "spread": "even"}
    if options["select"] == "thinet" and ratio:  # slow: the kind of its batches is enough here
        if batches is not None:
            with undisturbed():
                next(iter(as_runs(model, batches, bind(OWNER, model, inputs))))
        options |= {"select": "magnitude", "batches": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RsPruneWarning)  # the real cuts repeat what matters
        if settings.aimed and ratio and settings.rounds > 1:  # whether all together get there
            targets = {name: getattr(settings, name) for name in ("target_macs", "target_params")}
            floor = float(options["epsilon"]) ** settings.rounds
            cut_model(model, inputs, 0, **{**options, **targets, "epsilon": floor})
        cut_model(model, inputs, 0, **options)
    return full


def _described(inputs: Any) -> list[str]:
    """The shapes and types of the example inputs."""
    return [
        f"{tuple(leaf.shape)} {leaf.dtype}" if isinstance(leaf, Tensor) else type(leaf).__name__
        for leaf in tree_leaves(inputs)
    ]
