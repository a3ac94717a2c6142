"""compress as a whole: any plan runs, the model stays as it was, bad input is named."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rsprune
from rsprune.compression import compress_with_plan, layer_sparsity, plan_widths
from rsprune.errors import InvalidParameterError, RsPruneWarning
from rsprune.models import CifarResNet, SmallCNN
from rsprune.structure.groups import ChannelGraph
from tests.unit.compression.networks import IMAGE, Chain, Dense, sparsify

CHEAP = (Chain, Dense, lambda: CifarResNet(8))
DIGIT = torch.randn(2, 1, 8, 8)


def group_widths(model: nn.Module, graph: ChannelGraph) -> dict[str, int]:
    """The widths of a cut model's groups, read off the layers that make them."""
    tensors = dict(model.named_parameters())
    return {group.name: tensors[f"{group.name}.weight"].shape[0] for group in graph.prunable}


@settings(max_examples=20)
@given(
    make=st.sampled_from(CHEAP),
    zeros=st.floats(0, 1),
    epsilon=st.sampled_from([0, 0.05, 0.1, 0.5, 1]),
    unit=st.sampled_from(["auto", "layer", "block"]),
    round_to=st.sampled_from([1, 2, 4, 8]),
    target=st.sampled_from([None, 0.9, 0.6]),
    select=st.sampled_from(["magnitude", "nonzeros", "thinet", "random"]),
    inherit=st.booleans(),
)
def test_any_plan_runs(
    make: Any, zeros: float, epsilon: float, unit: str, round_to: int, target: float | None,
    select: str, inherit: bool,
) -> None:  # fmt: skip
    """Output shape of the original, no width 0, and the result has the plan's widths."""
    model = sparsify(make(), zeros)
    options = {"epsilon": epsilon, "unit": unit, "round_to": round_to, "target_macs": target}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RsPruneWarning)
        try:
            made = compress_with_plan(model, IMAGE, select=select, inherit=inherit, **options)
        except InvalidParameterError as error:
            if error.name == "target_macs":  # out of reach
                return
            raise
    assert made.model(IMAGE).shape == model(IMAGE).shape
    assert made.model(IMAGE).isfinite().all()
    graph = rsprune.trace(model, IMAGE)
    assert group_widths(made.model, graph) == made.plan.widths
    assert all(1 <= group.width <= group.size for group in made.plan.groups)
    cost = rsprune.profile(made.model, IMAGE)
    assert (made.plan.macs, made.plan.params) == (cost.macs, cost.params)
    if target is not None:
        assert made.plan.macs <= target * made.plan.full_macs


def test_compress_is_trace_plan_select_cut() -> None:
    """Step by step comes to the same."""
    model = sparsify(SmallCNN(), 0.6)
    graph = rsprune.trace(model, DIGIT)
    plan = plan_widths(model, graph)
    made = compress_with_plan(model, DIGIT)
    assert made.plan == plan
    slim = rsprune.prune(model, graph, made.drop)
    for name, tensor in rsprune.compress(model, DIGIT).state_dict().items():
        assert torch.equal(tensor, slim.state_dict()[name])
        assert torch.equal(tensor, made.model.state_dict()[name])


@pytest.mark.parametrize("select", ["magnitude", "nonzeros", "thinet", "random"])
@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(select: str, training: bool) -> None:
    """Weights, statistics, mode, gradients and random state."""
    model = sparsify(SmallCNN(), 0.5).train(training)
    model(DIGIT).sum().backward()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grads = [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]
    state = torch.get_rng_state()
    slim = rsprune.compress(model, DIGIT, select=select)
    assert torch.equal(state, torch.get_rng_state())
    assert model.training is training
    assert slim.training is training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, grad)


def test_training_goes_on_with_the_optimizer() -> None:
    """The optimizer steps the small model, with the survivors' momentum."""
    model = sparsify(SmallCNN(), 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(DIGIT).sum().backward()
    optimizer.step()
    made = compress_with_plan(model, DIGIT, target_macs=0.5, optimizer=optimizer)
    slim = made.model
    assert {id(p) for p in slim.parameters()} == {
        id(p) for group in optimizer.param_groups for p in group["params"]
    }
    for parameter in slim.parameters():
        assert optimizer.state[parameter]["momentum_buffer"].shape == parameter.shape
    before = [parameter.detach().clone() for parameter in slim.parameters()]
    slim(DIGIT).sum().backward()
    optimizer.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, slim.parameters(), strict=True)]
    assert any(moved)


def test_fresh_weights() -> None:
    """inherit=False: the same shapes, other weights; no zeros are left, statistics start anew."""
    model = sparsify(SmallCNN(), 0.7)
    model.train()(DIGIT)
    old, new = (rsprune.compress(model, DIGIT, inherit=inherit) for inherit in (True, False))
    for name, tensor in new.state_dict().items():
        assert tensor.shape == old.state_dict()[name].shape
    assert all(count.zeros == 0 for count in layer_sparsity(new).values())
    assert all(count.zeros > 0 for count in layer_sparsity(old).values())
    assert torch.equal(new.bn1.running_mean, torch.zeros_like(new.bn1.running_mean))
    assert int(new.bn1.num_batches_tracked) == 0


def test_fresh_weights_are_drawn_as_the_network_draws_them() -> None:
    """Where it has a rule of its own, that rule, for the widths it has now."""
    torch.manual_seed(0)
    slim = rsprune.compress(
        CifarResNet(8), torch.zeros(1, 3, 32, 32), target_macs=0.5, inherit=False
    )
    layer: Any = slim.get_submodule("layer3.0.conv2")
    assert layer.weight.std().item() == pytest.approx((2 / layer.weight[0].numel()) ** 0.5, rel=0.1)


def test_fresh_weights_need_a_method() -> None:
    """A module with parameters of its own but no reset_parameters is refused by name."""

    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    model = nn.Sequential(nn.Conv2d(3, 8, 3), Gain(), nn.Conv2d(8, 4, 3))
    with pytest.raises(InvalidParameterError, match=r"'1' \(Gain\) has no reset_parameters"):
        rsprune.compress(model, IMAGE, inherit=False)
    rsprune.compress(model, IMAGE, target_macs=0.5)


def test_fresh_attention() -> None:
    """torch's attention is initialised by its own method."""
    model = nn.Sequential(nn.Linear(6, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    slim = rsprune.compress(model, torch.randn(2, 5, 6), inherit=False, target_macs=1.0)
    assert not torch.equal(slim[1].self_attn.in_proj_weight, model[1].self_attn.in_proj_weight)


def test_a_model_without_zeros_stays_whole_with_a_warning() -> None:
    """It says how many zeros there are, and what to do, where that is the reason and no other."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 3))
    words = r"cut nothing: the zeros are too few, 0\.0%.* sparse optimizer, or set target_macs"
    with pytest.warns(rsprune.RsPruneWarning, match=words):
        slim = rsprune.compress(model, IMAGE)
    assert slim[0].weight.shape == model[0].weight.shape
    rsprune.compress(model, IMAGE, target_macs=1.0)
    rsprune.compress(model[:1], IMAGE)  # whose outputs are the model's
    with torch.no_grad():
        for layer in model[1:]:
            layer.weight[: len(layer.weight) // 2] = 0
    rsprune.compress(model, IMAGE, epsilon=1.0)
    assert len(rsprune.compress(model, IMAGE)[0].weight) == 4


class Picky(nn.Module):
    """Code that takes no fewer than two channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 12, 3)
        self.b = nn.Conv2d(12, 12, 3)
        self.c = nn.Conv2d(12, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        if x.shape[1] < 2:
            raise ValueError("too few channels")
        out: Tensor = self.c(self.b(x))
        return out


def test_what_cannot_be_cut_after_all_is_planned_whole() -> None:
    """Where prune leaves a group whole, with a warning, plan and drop say so."""
    model = sparsify(Picky(), 1.0)
    with pytest.warns(RsPruneWarning, match="left whole"):
        made = compress_with_plan(model, IMAGE, epsilon=0)
    assert made.plan.widths == {"a": 12, "b": 1}
    assert set(made.drop) == {"b"}
    cost = rsprune.profile(made.model, IMAGE)
    assert (made.plan.macs, made.plan.params) == (cost.macs, cost.params)


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"epsilon": -0.1}, "epsilon", r"\[0, 1\].*-0.1"),
    ({"epsilon": 1.5}, "epsilon", "1.5"),
    ({"epsilon": float("nan")}, "epsilon", "nan"),
    ({"epsilon": "0.1"}, "epsilon", "'0.1'"),
    ({"epsilon": True}, "epsilon", "True"),
    ({"epsilon": None}, "epsilon", "None"),
    ({"unit": "blocks"}, "unit", "Did you mean 'block'"),
    ({"unit": None}, "unit", "'auto', 'layer', 'block'"),
    ({"round_to": 0}, "round_to", r"\[1, inf\)"),
    ({"spread": "costs"}, "spread", "Did you mean 'cost'"),
    ({"spread": "cost"}, "spread", "without target_params"),
    ({"round_to": 2.0}, "round_to", "whole number"),
    ({"target_macs": 0}, "target_macs", r"\(0, 1\]"),
    ({"target_macs": 50}, "target_macs", "0.5 is half"),
    ({"target_params": -1}, "target_params", r"\(0, 1\]"),
    ({"target_params": float("inf")}, "target_params", "inf"),
]


@pytest.mark.parametrize(("options", "name", "message"), BAD, ids=lambda v: str(v)[:40])
def test_bad_options(options: dict[str, Any], name: str, message: str) -> None:
    """Both owners name the parameter, the range, the value and a remedy."""
    model = Chain()
    graph = rsprune.trace(model, IMAGE)
    with pytest.raises(InvalidParameterError, match=message) as caught:
        plan_widths(model, graph, **options)
    assert (caught.value.owner, caught.value.name) == ("plan_widths", name)
    with pytest.raises(InvalidParameterError, match=message) as caught:
        rsprune.compress(model, IMAGE, **options)
    assert (caught.value.owner, caught.value.name) == ("compress", name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"select": "magnitudes"}, "Did you mean 'magnitude'"),
        ({"mode": "zero_groups"}, "Did you mean 'zero-groups'"),
        ({"inherit": "no"}, "'inherit'"),
        ({"batches": [IMAGE]}, 'Only select="thinet"'),
        ({"batches": IMAGE, "select": "thinet"}, r"batches=\[images\]"),
        ({"batches": [], "select": "thinet"}, "at least one batch"),
        ({"batches": [3], "select": "thinet"}, "a tensor"),
        ({"optimizer": "sgd"}, "'optimizer'"),
        ({"optimizer": torch.optim.SGD(Chain().parameters(), lr=0.1)}, "trains the model"),
        (
            {"optimizer": torch.optim.SGD(Chain().parameters(), lr=0.1), "inherit": False},
            "make a new one",
        ),
    ],
    ids=lambda v: str(v)[:30],
)
def test_bad_options_of_compress(options: dict[str, Any], message: str) -> None:
    model = sparsify(Chain(), 0.5)
    with pytest.raises(InvalidParameterError, match=message):
        rsprune.compress(model, IMAGE, **options)


def test_bad_models_and_graphs() -> None:
    model = Chain()
    graph = rsprune.trace(model, IMAGE)
    with pytest.raises(InvalidParameterError, match="'model'"):
        plan_widths("model", graph)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="'graph'"):
        plan_widths(model, model)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="Trace the model again"):
        plan_widths(Chain(2), graph)
    with pytest.raises(InvalidParameterError, match="'example_inputs'"):
        rsprune.compress(model, None)
    with pytest.raises(InvalidParameterError, match="with data"):
        rsprune.compress(Chain().to("meta"), IMAGE.to("meta"))


def test_a_model_without_prunable_channels() -> None:
    """Nothing to do is done: an equal model, an empty plan."""
    model = nn.Linear(4, 3)
    made = compress_with_plan(model, torch.randn(2, 4))
    assert made.plan.groups == ()
    assert torch.equal(made.model.weight, model.weight)
    assert "100.0%" in str(made.plan)
