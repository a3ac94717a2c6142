"""What the recursion gives to the user's loops, takes from them, and refuses before any call."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from rsprune.errors import InvalidParameterError
from rsprune.recursion import recursive_prune
from tests.unit.recursion.script import prune, zeroing
from tests.unit.recursion.toy import Net, X


def test_the_given_model_is_left_untouched() -> None:
    """Weights, buffers, gradients and modes, also when loops train in place or switch modes."""
    torch.manual_seed(0)
    model = Net()
    model.conv1.weight.grad = torch.ones_like(model.conv1.weight)
    model.norm.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def spoil(given: nn.Module, *_: Any) -> None:
        given.train(not given.training)
        for tensor in given.state_dict().values():
            tensor.zero_()

    result = recursive_prune(
        model, X, explore=spoil, finetune=spoil, evaluate=lambda m: (spoil(m), 0.5)[1], rounds=2
    )
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert model.conv1.weight.grad is not None
    assert (model.training, model.norm.training) == (True, False)
    assert (result.model.training, result.model.norm.training) == (True, False)
    assert result.model is not model


def test_loops_may_return_the_trained_model() -> None:
    """What explore and finetune return counts, instead of the model they were given."""
    import copy

    def explore(model: nn.Module, lam: float) -> nn.Module:
        other = copy.deepcopy(model)
        zeroing(0.5)(other, lam)
        return other

    def finetune(model: nn.Module) -> nn.Module:
        other = copy.deepcopy(model)
        nn.init.constant_(other.fc.bias, 7.0)
        return other

    result = prune(explore=explore, finetune=finetune, rounds=1)
    assert result.history[0].sparsity == pytest.approx(0.5, abs=0.01)
    assert result.model.fc.bias.tolist() == [7.0] * 3


def test_every_loop_gets_the_model_in_the_modes_of_the_given_one() -> None:
    """A loop that forgets train() after an evaluate that left eval() does not train in eval."""
    modes: list[bool] = []

    def explore(model: nn.Module, lam: float) -> None:
        modes.append(model.training)
        zeroing(0.5)(model, lam)

    prune(explore=explore, evaluate=lambda m: (m.eval(), 0.9)[1], rounds=2)
    assert modes == [True, True]


@pytest.mark.parametrize("good", [torch.tensor(0.9), torch.tensor([0.9]), 1, 0.9])
def test_numbers_and_tensors_with_one_element_are_accuracies(good: Any) -> None:
    assert prune(evaluate=lambda _: good, rounds=1).baseline == pytest.approx(float(good))


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (None, "returned None"),
        (math.nan, "returned nan"),
        (torch.tensor([0.9, 0.8]), r"a tensor of shape \(2,\)"),
        ({"accuracy": 0.9}, "a dict"),
        (True, "True"),
        ("0.9", "'0.9'"),
        (torch.tensor(math.nan), "nan"),
    ],
)
def test_what_is_no_accuracy_is_named(bad: Any, shown: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"'evaluate'.*{shown}"):
        prune(evaluate=lambda _: bad)


@pytest.mark.parametrize("name", ["explore", "finetune"])
@pytest.mark.parametrize(
    ("bad", "shown"), [(0.3, "0.3"), (nn.Linear(1, 1), "a Linear unlike the Net it got")]
)
def test_what_is_no_trained_model_is_named(name: str, bad: Any, shown: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"'{name}'.*{shown}"):
        prune(**{name: lambda *_: bad}, rounds=1)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"lam": 0}, "lam"),
        ({"lam": -1e-4}, "lam"),
        ({"lam": math.nan}, "lam"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 1.5}, "rounds"),
        ({"lambda_rule": "papers"}, "lambda_rule"),
        ({"tolerance": -0.1}, "tolerance"),
        ({"flat": -1}, "flat"),
        ({"epsilon": 2}, "epsilon"),
        ({"unit": "layers"}, "unit"),
        ({"round_to": 0}, "round_to"),
        ({"spread": "costs"}, "spread"),
        ({"spread": "cost", "target_macs": 0.5, "rounds": 2}, "spread"),
        ({"target_macs": 1.5}, "target_macs"),
        ({"target_params": 0}, "target_params"),
        ({"select": "magnitudes"}, "select"),
        ({"mode": "ration"}, "mode"),
        ({"explore": None}, "explore"),
        ({"evaluate": 0.9}, "evaluate"),
        ({"finetune": "yes"}, "finetune"),
        ({"on_event": 3}, "on_event"),
        ({"directory": 3}, "directory"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_called(
    changes: dict[str, Any], name: str
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("was called")

    with pytest.raises(InvalidParameterError, match=f"'{name}' parameter of recursive_prune"):
        prune(**{"explore": never, "evaluate": never, "finetune": never, **changes})


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"batches": [X]}, "batches"),
        ({"select": "thinet", "batches": X}, "batches"),
        ({"select": "thinet", "batches": []}, "batches"),
        ({"mode": "zero-groups", "target_macs": 0.5}, "target_macs"),
        ({"mode": "zero-groups", "select": "thinet"}, "select"),
        ({"inherit": "yes"}, "inherit"),
    ],
)
def test_what_compress_would_refuse_is_refused_before_any_training(
    changes: dict[str, Any], name: str
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("was called")

    with pytest.raises(InvalidParameterError, match=f"'{name}'"):
        prune(**{"explore": never, "evaluate": never, "rounds": 1, "epsilon": 0.1, **changes})


def test_the_random_generator_is_left_to_the_loops() -> None:
    """What comes from the recursion itself draws no random numbers."""
    drawn: list[float] = []
    for inherit in (True, False):
        torch.manual_seed(5)
        model = Net()
        recursive_prune(
            model, X, explore=zeroing(0.5), evaluate=lambda _: 0.9, rounds=2, inherit=inherit
        )
        drawn.append(torch.rand(1).item())
    torch.manual_seed(5)
    Net()
    assert drawn == [torch.rand(1).item()] * 2


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="convolution or linear"):
        recursive_prune(nn.BatchNorm2d(1), X, explore=zeroing(0.5), evaluate=lambda _: 0.9)


def test_other_errors_of_the_loops_pass_through() -> None:
    def explore(_model: nn.Module, _lam: float) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        prune(explore=explore)


def test_a_generator_of_batches_serves_every_round() -> None:
    images = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    result = prune(rounds=2, select="thinet", batches=(images[i : i + 4] for i in (0, 4)))
    assert len(result.history) == 2


def test_tensors_are_values_like_any_other() -> None:
    """lam may be a tensor, as in an optimizer."""
    result = prune(rounds=1, lam=torch.tensor(0.25))
    assert isinstance(result.history[0].lam, float)
