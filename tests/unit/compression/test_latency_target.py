"""Targets of latency: the search by a clock on paper, and one target met on this machine."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rsprune
from rsprune.compression import WidthPlan, compress_with_plan, plan_widths, widths
from rsprune.compression import clock as clocks
from rsprune.compression.budget import Fit
from rsprune.compression.cost import Costs
from rsprune.compression.search import Room
from rsprune.compression.steps import STEPS, Choice, fastest
from rsprune.compression.target import Target
from rsprune.compression.timing import Stopwatch
from rsprune.compression.widths import Options, check_measuring, plan
from rsprune.errors import ExportError, InvalidParameterError, RsPruneWarning
from rsprune.models import VGG16
from rsprune.structure.groups import ChannelGraph
from tests.unit.compression.clocks import PaperClock
from tests.unit.compression.networks import IMAGE, Chain, Dense, classifier, sparsify

X = IMAGE[:1]
Rooms = Callable[[int], Sequence[Room]]


def options(**changes: Any) -> Options:
    known: dict[str, Any] = {
        "owner": "plan_widths", "epsilon": 0.1, "unit": "layer", "round_to": 1, "spread": "even",
        "target_macs": None, "target_params": None, "target_latency": None, "runtime": "torch",
        "batch": 1, "threads": None,
    }  # fmt: skip
    return Options(**{**known, **changes})


def traced(model: nn.Module, x: Tensor = X) -> ChannelGraph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RsPruneWarning)
        return rsprune.trace(model, x)


def share(planned: WidthPlan) -> float:
    assert planned.time is not None
    return planned.time.share


@pytest.mark.parametrize(("name", "target"), [("squeezenet1_1", 0.25), ("shufflenet_v2_x0_5", 0.5)])
def test_a_target_is_met_within_five_percent_from_below(name: str, target: float) -> None:
    """Depthwise, grouped and concatenated layers; the estimate is near enough for three tries."""
    model, x = classifier(name), torch.randn(1, 3, 64, 64)
    graph = traced(model, x)
    clock = PaperClock(model, x, fixed=1e-4)
    planned = plan(model, graph, options(target_latency=target, epsilon=0.02), clock)
    assert 0.95 * target <= share(planned) <= target
    assert clock.measured <= 4
    drop = {group.name: range(group.width, group.size) for group in planned.groups}
    full, slim = clock.models([rsprune.prune(model, graph, drop)])
    assert slim / full == pytest.approx(share(planned))


def test_a_machine_that_likes_some_widths_is_no_obstacle() -> None:
    """Where widths that are no multiples of 8 take twice as long, time jumps with every width."""
    model, x = classifier("resnet18"), torch.randn(1, 3, 64, 64)
    clock = PaperClock(model, x, liked=8, odd=2.0)
    planned = plan(model, traced(model, x), options(target_latency=0.5), clock)
    assert 0.95 * 0.5 <= share(planned) <= 0.5
    assert clock.measured <= 13
    parts = [group.width / group.size for group in planned.groups]
    assert max(parts) <= 1.3 * min(parts)  # one factor for all


def test_the_tightest_of_three_targets_decides() -> None:
    model = VGG16()
    graph = traced(model)
    clock = PaperClock(model, X)

    def reached(**targets: float) -> tuple[float, float, float]:
        planned = plan(model, graph, options(**targets), clock)
        macs, params = planned.macs / planned.full_macs, planned.params / planned.full_params
        return macs, params, share(planned)

    macs, params, time = reached(target_macs=0.3, target_params=0.9, target_latency=0.8)
    assert 0.98 * 0.3 <= macs <= 0.3
    assert params <= 0.9
    assert time <= 0.8
    macs, params, time = reached(target_macs=0.8, target_params=0.2, target_latency=0.6)
    assert 0.98 * 0.2 <= params <= 0.2
    assert macs <= 0.8
    assert time <= 0.6
    macs, params, time = reached(target_macs=0.9, target_params=0.9, target_latency=0.3)
    assert 0.95 * 0.3 <= time <= 0.3
    assert macs <= 0.9
    assert params <= 0.9


def test_an_impossible_target_is_refused_with_the_closest_possible_one() -> None:
    """Half of the time is overhead that no width changes; the figure in the message is possible."""
    model = Chain(4)
    graph = traced(model)
    clock = PaperClock(model, X)
    clock.fixed = clock.models([])[0]
    with pytest.raises(InvalidParameterError, match=r"'target_latency'.*measured") as caught:
        plan(model, graph, options(target_latency=0.4), clock)
    assert not clock.points  # which would have been a waste
    least = re.search(r"at least (0\.\d\d)", str(caught.value))
    assert least is not None
    assert 0.5 < float(least[1]) < 0.55
    assert "lower epsilon" in caught.value.remedy
    assert share(plan(model, graph, options(target_latency=float(least[1])), clock)) <= 0.55
    for target in (0.4, float(least[1])):
        asked = options(target_latency=target)
        if target == 0.4:
            with pytest.raises(InvalidParameterError):
                check_measuring(model, graph, asked, clock)
        else:
            check_measuring(model, graph, asked, clock)


def test_of_combined_targets_the_impossible_one_is_named() -> None:
    model = Chain(4)
    clock = PaperClock(model, X)
    for name, others in (
        ("target_macs", {"target_latency": 0.9, "target_params": 0.9}),
        ("target_latency", {"target_macs": 0.9}),
    ):
        with pytest.raises(InvalidParameterError, match=f"'{name}' .* at least 0"):
            plan(model, traced(model), options(**others, **{name: 1e-4}), clock)


def test_the_whole_of_the_time_leaves_the_model_whole() -> None:
    """And nothing is measured for it."""
    model = sparsify(Chain(4), 0.5)
    clock = PaperClock(model, X)
    planned = plan(model, traced(model), options(target_latency=1.0), clock)
    assert planned.macs == planned.full_macs
    assert planned.time is None
    assert clock.measured == 0


def test_coarse_widths_come_as_near_as_they_can_and_say_so() -> None:
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 8, 3))
    graph = traced(model)
    with pytest.warns(RsPruneWarning, match=r"target_latency=0.9 comes out as 0\.5"):
        planned = plan(model, graph, options(round_to=16, target_latency=0.9), PaperClock(model, X))
    assert planned.widths == {"0": 16}


def test_code_that_looks_at_values_and_concatenations() -> None:
    """Graphs of real tensors; layers that read several groups."""

    class Looks(Dense):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.sum().item() > 1e9 else x * 2)

    model = Looks()
    graph = traced(model)
    assert graph.real
    clock = PaperClock(model, X, real=True)
    planned = plan(model, graph, options(target_latency=0.6), clock)
    assert 0.95 * 0.6 <= share(planned) <= 0.6


def test_the_plan_says_what_each_layer_costs() -> None:
    model = VGG16()
    clock = PaperClock(model, X, fixed=1e-3)
    planned = plan(model, traced(model), options(target_latency=0.5, threads=1), clock)
    time = planned.time
    assert time is not None
    assert [one.name for one in time.layers][:2] == ["features.0", "features.3"]
    assert len(time.layers) == 16
    assert all(one.after <= one.before for one in time.layers)
    assert sum(one.before for one in time.layers) == pytest.approx(time.before - 1e-3)
    text = str(planned)
    assert re.search(r"features\.3 +\d+\.\d{3} +\d+\.\d{3}\n", text)
    assert re.search(r"all else +1\.000 +\d\.\d{3}\n", text)
    assert re.search(r"time .* ms -> .* ms \(4\d\.\d%\); torch, batch 1, threads 1$", text)


# -- round_to="auto" ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "step"),
    [
        ({1: 1.0, 4: 0.9, 8: 0.5, 16: 0.6}, 8),
        ({1: 1.0, 4: 0.99, 8: 0.98, 16: 0.975}, 1),  # within 3 %
        ({1: 1.0, 4: 0.6, 8: 0.59, 16: 0.585}, 4),
        ({1: 0.5, 16: 1.0}, 1),
    ],
)
def test_the_fastest_multiple_and_the_smallest_of_nearly_equal_ones(
    times: dict[int, float], step: int
) -> None:
    assert fastest(times) == step


@pytest.mark.parametrize(
    ("liked", "target"),
    [(1, {}), (4, {"target_macs": 0.5}), (8, {}), (16, {"target_params": 0.3})],
)
def test_auto_finds_the_multiple_that_the_machine_likes(
    liked: int, target: dict[str, float]
) -> None:
    """At equal multiply-accumulates, with and without a target."""
    model = sparsify(VGG16(), 0.33)
    graph = traced(model)
    clock = PaperClock(model, X, liked=liked, odd=1.5)
    plain = plan(model, graph, options(**target))
    planned = plan(model, graph, options(round_to="auto", **target), clock)
    assert planned.round_to == liked
    assert all(group.width % liked == 0 for group in planned.groups)
    assert 0.98 * plain.macs <= planned.macs <= plain.macs
    assert planned.time is not None
    assert tuple(step for step, _ in planned.time.steps) == STEPS
    assert planned.time.layers == ()
    assert (f"multiples of {liked}" in str(planned)) == (liked > 1)
    assert clock.measured <= len(STEPS)


def test_auto_with_a_target_of_latency() -> None:
    """The multiple first, then the target with it."""
    model = VGG16()
    clock = PaperClock(model, X, liked=8, odd=1.5)
    planned = plan(model, traced(model), options(round_to="auto", target_latency=0.4), clock)
    assert planned.round_to == 8
    assert 0.95 * 0.4 <= share(planned) <= 0.4
    assert all(group.width % 8 == 0 for group in planned.groups)
    assert clock.measured <= len(STEPS) + 4


def test_auto_gives_up_a_multiple_with_which_the_target_is_out_of_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The multiple is chosen by estimates; two of these groups have no smaller one of 16."""

    def sixteen(_costs: Costs, _watch: Stopwatch, _rooms: Rooms, start: Fit, _: Target) -> Choice:
        return Choice(16, start, {1: 0.2, 16: 0.1})

    monkeypatch.setattr(widths, "choose_step", sixteen)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 256, 3), nn.Conv2d(256, 16, 3))
    model.append(nn.Conv2d(16, 8, 1))
    clock = PaperClock(model, X)
    planned = plan(model, traced(model), options(round_to="auto", target_latency=0.05), clock)
    assert planned.round_to == 1
    assert 0.95 * 0.05 <= share(planned) <= 0.05


def test_estimates_that_are_far_off_are_no_obstacle() -> None:
    """A machine that is slow with all but the narrowest models: no correction finds it."""

    class Cliff(PaperClock):
        def models(self, models: Sequence[nn.Module]) -> list[float]:
            full, *others = super().models(models)
            return [full, *(own if own < 0.2 * full else 5 * full for own in others)]

    model = VGG16()
    graph = traced(model)
    with pytest.warns(RsPruneWarning, match="comes out as"):
        planned = plan(model, graph, options(target_latency=0.5, epsilon=0.02), Cliff(model, X))
    assert 0.1 < share(planned) < 0.2  # the smallest widths would be 0.001


def test_multiples_that_do_not_reach_the_same_size_are_not_compared() -> None:
    """A network whose groups are too small for multiples of 8 and 16, and one that is not cut."""
    model = sparsify(Chain(2), 0.4)  # 20, 12 and 16 channels
    clock = PaperClock(model, X, liked=16, odd=9.0)
    planned = plan(model, traced(model), options(round_to="auto"), clock)
    assert planned.round_to == 1
    model = Chain(2)
    clock = PaperClock(model, X)
    planned = plan(model, traced(model), options(round_to="auto"), clock)
    assert (planned.round_to, planned.time, clock.measured) == (1, None, 0)
    assert planned.macs == planned.full_macs


def test_a_model_that_takes_any_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs by name stay what they were on their way to the machine."""
    monkeypatch.setattr(clocks, "_PATIENCE", 0.1)
    monkeypatch.setattr(clocks, "_SLICE", 0.02)

    class Free(Chain):
        def forward(self, x: Tensor, **more: Tensor) -> Tensor:
            return super().forward(x * more["scale"])

    model, inputs = Free(4), {"x": X, "scale": torch.ones(1, 1, 1, 1)}
    graph = rsprune.trace(model, inputs)
    clock = clocks.MachineClock(model, graph, "torch", 2, 1)
    assert min(clock.models([rsprune.prune(model, graph, {"a": range(20)})])) > 0


# -- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("target_latency", 0.0, r"range \(0, 1\]"),
        ("target_latency", 1.5, r"range \(0, 1\]"),
        ("target_latency", "half", r"range \(0, 1\]"),
        ("runtime", "onnx", "onnxruntime"),
        ("batch", 0, r"range \[1, inf\)"),
        ("threads", 0, r"range \[1, inf\)"),
        ("round_to", "best", "or 'auto'"),
        ("round_to", 0, "or 'auto'"),
        ("round_to", True, "or 'auto'"),
    ],
)
def test_options_are_checked(name: str, value: object, words: str) -> None:
    model = Chain()
    with pytest.raises(InvalidParameterError, match=words) as caught:
        plan_widths(model, traced(model), **{name: value})  # type: ignore[arg-type]
    assert caught.value.name == name
    with pytest.raises(InvalidParameterError, match=words):
        compress_with_plan(model, X, **{name: value})  # type: ignore[arg-type]


def test_zero_groups_have_no_latency_target() -> None:
    for name, value in (("target_latency", 0.5), ("round_to", "auto"), ("batch", 2)):
        with pytest.raises(InvalidParameterError, match="zero-groups"):
            compress_with_plan(Chain(), X, mode="zero-groups", **{name: value})


def test_a_missing_runtime_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ExportError, match=r"onnxruntime.*rsprune\[export\]"):
        rsprune.compress(Chain(), X, target_latency=0.5, runtime="onnxruntime")


# -- this machine -------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_a_target_is_met_on_this_machine(monkeypatch: pytest.MonkeyPatch, runtime: str) -> None:
    """One that leaves much room: the machine may be busy."""
    monkeypatch.setattr(clocks, "_PATIENCE", 0.2)
    monkeypatch.setattr(clocks, "_SLICE", 0.05)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5),
    ).train()  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RsPruneWarning)  # that it did not come nearer
        made = compress_with_plan(model, X, target_latency=0.5, runtime=runtime, batch=4, threads=1)
    time = made.plan.time
    assert time is not None
    assert time.share <= 0.5
    assert made.plan.macs < 0.9 * made.plan.full_macs
    assert all(module.training for module in model.modules())
    assert (time.runtime, time.batch, time.threads) == (runtime, 4, 1)
