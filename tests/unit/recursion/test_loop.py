"""Algorithm 1, rule by rule, with loops that follow a script instead of training."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rsprune
from rsprune.errors import DivergenceError, InvalidParameterError, RsPruneWarning
from rsprune.recursion import PruneResult, Size, recursive_prune
from tests.unit.recursion.script import prune, saying, zeroing
from tests.unit.recursion.toy import Net, X


def test_one_round_is_the_papers_setting() -> None:
    """rounds=1: explore once, cut once, fine-tune what was cut."""
    calls: list[str] = []

    def explore(model: nn.Module, lam: float) -> None:
        calls.append(f"explore {model.conv1.out_channels} {lam}")
        zeroing(0.5)(model, lam)

    def finetune(model: nn.Module) -> None:
        calls.append(f"finetune {model.conv1.out_channels}")

    result = prune(explore=explore, finetune=finetune, rounds=1, lam=1e-3)
    assert calls == ["explore 16 0.001", "finetune 8"]
    assert result.stopped == "1 round was asked for"
    assert result.best == 0
    assert len(result.history) == 1


def test_each_round_cuts_the_model_of_the_one_before_with_its_penalty() -> None:
    """Lines 2 to 6: sizes follow on each other, lambda follows the sizes."""
    seen: list[tuple[int, float]] = []

    def explore(model: nn.Module, lam: float) -> None:
        seen.append((rsprune.profile(model, X).weights, lam))
        zeroing(0.5)(model, lam)

    result = prune(explore=explore, rounds=3, lam=1e-2)
    assert [one.before.weights for one in result.history] == [size for size, _ in seen]
    for one, following in zip(result.history, result.history[1:], strict=False):
        assert following.before == one.after
    for size, lam in seen:
        assert lam == pytest.approx(1e-2 * size / seen[0][0])
    assert result.after == result.history[-1].after
    assert rsprune.profile(result.model, X).weights == result.after.weights


@pytest.mark.parametrize(("rule", "factor"), [("constant", 1.0), ("inverse", 1.0)])
def test_the_lambda_rule_is_followed(rule: str, factor: float) -> None:
    result = prune(rounds=2, lam=1e-2, lambda_rule=rule)
    first, second = result.history
    if rule == "inverse":
        factor = first.before.weights / second.before.weights
    assert second.lam == pytest.approx(1e-2 * factor)


def test_accuracy_regression_ends_the_rounds() -> None:
    """M^1 loses accuracy in sparse training: it is not cut, but fine-tuned as it was cut."""
    started: list[float] = []

    def finetune(model: nn.Module) -> None:
        started.append(float((model.conv2.weight == 0).float().mean()))

    result = prune(evaluate=saying(0.9, 0.9, 0.85, 0.9), finetune=finetune, rounds=3)
    assert result.stopped.startswith("round 2: the accuracy regressed")
    assert result.history[1].after is None
    assert result.best == 0
    assert result.after == result.history[0].after
    assert len(started) == 1


def test_the_smallest_model_within_the_tolerance_wins() -> None:
    """M^3 cannot be mended by fine-tuning; the next larger one, as explored, can."""
    evaluate = saying(0.9, 0.9, 0.9, 0.9, 0.6, 0.1, 0.895)
    result = prune(evaluate=evaluate, rounds=3)
    assert result.best == 1
    assert result.accuracy == 0.9  # fine-tuning took a little off: the better weights are kept
    assert [one.finetuned for one in result.history] == [None, 0.895, 0.6]
    assert result.after == result.history[1].after


def test_models_of_the_same_size_are_not_tried_twice() -> None:
    """M^2 is as large as M^1: fine-tuning M^1 after it would not be a step back."""
    shares = iter([0.5, 0.0])
    tried: list[int] = []

    def explore(model: nn.Module, lam: float) -> None:
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        zeroing(next(shares))(model, lam)

    with pytest.warns(RsPruneWarning, match="not within the tolerance"):
        prune(
            explore=explore, evaluate=saying(0.9, 0.9, 0.9, 0.5, 0.1), rounds=2,
            finetune=lambda model: tried.append(model.conv1.out_channels),
        )  # fmt: skip
    assert tried == [8]


def test_if_all_lose_accuracy_the_most_accurate_one_is_returned_with_a_warning() -> None:
    with pytest.warns(RsPruneWarning, match="not within the tolerance"):
        result = prune(evaluate=saying(0.9, 0.9, 0.6, 0.5, 0.1), rounds=2, tolerance=0.01)
    assert (result.best, result.accuracy) == (0, 0.6)
    assert "not within the tolerance" in result.stopped


def test_a_penalty_that_is_too_high_at_once_returns_the_given_model() -> None:
    """Nothing was compressed, so nothing is fine-tuned; the warning names lam."""

    def finetune(_model: nn.Module) -> None:
        raise AssertionError("there is nothing to fine-tune")

    with pytest.warns(RsPruneWarning, match=r"lam=0\.01 is too high"):
        result = prune(evaluate=saying(0.9, 0.5), finetune=finetune, lam=0.01)
    assert result.best is None
    assert (result.accuracy, result.after) == (0.9, result.before)
    torch.manual_seed(0)
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            Net().state_dict().values(), result.model.state_dict().values(), strict=True
        )
    )


def test_flat_sparsity_and_size_end_the_rounds() -> None:
    """From the third round on there are no zeros any more: nothing changes, nothing is cut."""
    shares = iter([0.5, 0.0, 0.0, 0.0, 0.0])

    def explore(model: nn.Module, lam: float) -> None:
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        zeroing(next(shares))(model, lam)

    result = prune(explore=explore, rounds=5)
    assert "flat" in result.stopped
    assert len(result.history) == 3
    assert result.history[-1].after is None


def test_nothing_to_cut_is_said() -> None:
    with pytest.warns(RsPruneWarning, match="No channel was cut.*Raise lam"):
        result = prune(explore=lambda _model, _lam: None, rounds=1)
    assert result.after == result.before


def test_without_finetuning_models_are_taken_as_they_are() -> None:
    result = prune(finetune=None, evaluate=saying(0.9, 0.9, 0.89), rounds=1)
    assert result.accuracy == 0.89
    assert result.history[0].finetuned is None


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("name", ["target_macs", "target_params"])
def test_the_last_cut_meets_a_target(name: str, rounds: int) -> None:
    """A fraction of M^0, from below, whatever the accuracy; earlier cuts share the way out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RsPruneWarning)
        result = prune(rounds=rounds, evaluate=lambda m: m.conv1.out_channels / 16, **{name: 0.3})
    field = name.removeprefix("target_")
    shares = [getattr(one.after, field) / getattr(result.before, field) for one in result.history]
    assert len(shares) == rounds
    for t, share in enumerate(shares):
        assert share <= 0.3 ** ((t + 1) / rounds)
        assert share > 0.85 * 0.3 ** ((t + 1) / rounds)  # the network's units are coarse
    assert result.after == result.history[-1].after


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_target_that_cannot_be_met_is_refused_before_any_training(rounds: int) -> None:
    """Also where the first of several rounds could still do its share."""

    def explore(_model: nn.Module, _lam: float) -> None:
        raise AssertionError("no training")

    target = 0.2**rounds
    with pytest.raises(InvalidParameterError, match=r"'target_macs'.*at least.*lower epsilon"):
        prune(explore=explore, target_macs=target, rounds=rounds, epsilon=0.5)


def test_what_blocks_share_limits_the_target_from_the_start() -> None:
    """Round 0 could do its share of 0.2, but widths between blocks stay in all rounds."""
    from rsprune.models import build

    def explore(_model: nn.Module, _lam: float) -> None:
        raise AssertionError("no training")

    with pytest.raises(InvalidParameterError, match=r"'target_macs'.*unit=.layer."):
        recursive_prune(
            build("resnet20"), torch.zeros(1, 3, 32, 32), explore=explore, evaluate=lambda _: 0.9,
            target_macs=0.005, rounds=3,
        )  # fmt: skip


@pytest.mark.parametrize(("rounds", "spread"), [(1, "cost"), (2, "even")])
def test_only_a_single_cut_goes_by_cost(rounds: int, spread: str) -> None:
    """In blocks, by default; of several cuts each would take anew where weights cost most."""
    from rsprune.models import build

    result = recursive_prune(
        build("resnet20"), torch.zeros(1, 3, 32, 32), explore=lambda *_: None,
        evaluate=lambda _: 0.9, target_macs=0.5, rounds=rounds,
    )  # fmt: skip
    assert [one.spread for one in result.history] == [spread] * rounds
    assert [one.event()["spread"] for one in result.history] == [spread] * rounds


def diverging(at: int) -> Callable[[nn.Module, float], None]:
    """An explore whose loss becomes NaN in one of its calls."""
    calls = iter(range(100))

    def explore(model: nn.Module, lam: float) -> None:
        if next(calls) == at:
            raise DivergenceError("the loss is NaN at step 7")
        zeroing(0.5)(model, lam)

    return explore


def test_divergence_ends_the_rounds_and_keeps_what_there_is() -> None:
    with pytest.warns(RsPruneWarning, match=r"step 7.*lower learning rate.*lam.*clipping"):
        result = prune(explore=diverging(1), rounds=3)
    assert result.best == 0
    assert result.history[1].diverged == "the loss is NaN at step 7"
    assert result.after == result.history[0].after


def test_divergence_at_once_returns_the_given_model() -> None:
    with pytest.warns(RsPruneWarning, match="returned as it was"):
        result = prune(explore=diverging(0))
    assert result.best is None


def test_weights_that_are_not_finite_count_as_divergence() -> None:
    """A loop that does not look at its loss leaves NaN behind."""

    def explore(model: nn.Module, _lam: float) -> None:
        nn.init.constant_(model.fc.bias, math.nan)

    with pytest.warns(RsPruneWarning, match=r"'fc\.bias' holds NaN"):
        result = prune(explore=explore)
    assert result.best is None


def test_divergence_in_finetuning_keeps_the_weights_before_it() -> None:
    def finetune(model: nn.Module) -> None:
        nn.init.constant_(model.fc.weight, math.inf)

    with pytest.warns(RsPruneWarning, match="Fine-tuning diverged"):
        result = prune(finetune=finetune, rounds=1)
    assert all(bool(p.isfinite().all()) for p in result.model.parameters())
    assert result.best == 0


def test_units_that_are_zero_can_be_all_that_is_cut() -> None:
    """mode="zero-groups": what a group optimizer set to zero goes, round by round."""

    def explore(model: nn.Module, _lam: float) -> None:
        with torch.no_grad():
            half = model.conv1.out_channels // 2
            for tensor in (model.conv1.weight, model.norm.weight, model.norm.bias):
                tensor[:half] = 0

    result = prune(explore=explore, mode="zero-groups", rounds=2, epsilon=0.1)
    assert [row.after.weights for row in result.history] == sorted(
        {row.after.weights for row in result.history}, reverse=True
    )
    assert result.model.conv1.out_channels == 4
    assert result.model.conv2.out_channels == 16


def test_events_tell_every_stage_in_json() -> None:
    events: list[dict[str, Any]] = []
    result = prune(rounds=2, on_event=events.append)
    assert json.loads(json.dumps(events)) == events
    assert [event["event"] for event in events] == [
        "baseline", "round", "round", "finetuned", "done",
    ]  # fmt: skip
    assert events[0]["validation_accuracy"] == 0.9
    assert events[0]["macs"] == result.before.macs
    first = result.history[0]
    assert events[1]["before"]["weights"] == first.before.weights
    assert events[1]["after"]["macs"] == first.after.macs
    row = next(row for row in events[1]["widths"] if row["group"] == "conv1")
    assert (row["from"], row["to"], row["driver"]) == (16, 8, "conv2")
    assert row["sparsity"] == 0.5
    assert events[3] == {"event": "finetuned", "round": 1, "accuracy": 0.9, "resumed": False}
    assert events[4]["stopped"] == result.stopped


def test_the_result_prints_as_a_table() -> None:
    """Rounds with lambda, sparsity, accuracy and size; the last line says from what to what."""
    text = str(prune(rounds=2, lam=1e-3)).splitlines()
    assert text[0].split() == [
        "round", "lambda", "sparsity", "accuracy", "MACs", "weights", "fine-tuned",
    ]  # fmt: skip
    assert text[1].split() == ["given", "0.9000", "88,176", "2,496"]
    assert text[2].split() == ["1", "0.001", "50.0%", "0.9000", "88,176", "2,496"]
    assert text[3].split()[0] == "cut"
    assert text[5].split()[-2:] == ["0.9000", "best"]
    assert text[-2] == "stopped: 2 rounds were asked for"
    assert text[-1].startswith("MACs 88,176 -> ")
    assert "x fewer" in text[-1]
    assert text[-1].endswith("accuracy 0.9000 -> 0.9000")


def test_a_result_that_is_the_given_model_does_not_call_it_smaller() -> None:
    size = Size(88_176, 2_496, 2_500)
    result = PruneResult(nn.Identity(), (), 0.9, 0.9, None, "nothing to cut", size, size)
    assert "MACs 88,176 -> 88,176 (as many), weights 2,496 -> 2,496 (as many)" in str(result)


def test_weights_made_anew_are_the_same_every_time() -> None:
    """inherit=False, as in "retrain", does not depend on the state of the random generator."""
    models = []
    for seed in (1, 2):

        def explore(model: nn.Module, lam: float, seed: int = seed) -> None:
            torch.manual_seed(seed)
            zeroing(0.5)(model, lam)

        models.append(prune(rounds=1, inherit=False, explore=explore).model)
    assert torch.equal(models[0].conv2.weight, models[1].conv2.weight)


def test_a_wide_network_with_a_residual_sum_goes_through(tmp_path: Any) -> None:
    """Blocks, shared widths and a directory, on a real architecture."""
    from rsprune.models import build

    torch.manual_seed(0)

    def explore(model: nn.Module, _lam: float) -> None:
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, nn.Conv2d):
                    module.weight.mul_((module.weight.abs() > module.weight.abs().median()).float())

    result = recursive_prune(
        build("resnet20"), torch.zeros(1, 3, 32, 32), explore=explore, evaluate=lambda _: 0.9,
        rounds=2, directory=tmp_path / "state",
    )  # fmt: skip
    assert result.after.macs < 0.45 * result.before.macs
    assert result.model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_fine_tuning_that_does_harm_is_left_out() -> None:
    """The best checkpoint counts, not the last: here the model as it was cut."""

    def finetune(model: nn.Module) -> None:
        nn.init.zeros_(model.fc.weight)

    def evaluate(model: nn.Module) -> float:
        return 0.9 if model.fc.weight.any() else 0.1

    result = prune(finetune=finetune, evaluate=evaluate, rounds=1)
    assert result.accuracy == 0.9
    assert result.model.fc.weight.any()
    assert result.history[0].finetuned == 0.1
    assert result.stopped == "1 round was asked for"
