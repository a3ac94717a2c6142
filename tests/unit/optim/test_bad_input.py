"""Bad input gets an error that names owner, parameter, range, value and remedy; nothing changes."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from rsprune import GradientError, InvalidParameterError, RsPruneError, param_groups
from rsprune.optim import HSPG, RDA, OBProxSG, ProxSVRG, phase_schedule
from rsprune.optim.diagnostics import reach, wrongly_frozen
from tests.optimizers import CASES, Case, assert_same_bits, small_net, weights

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def param() -> nn.Parameter:
    return nn.Parameter(torch.ones(2, 2))


@every_case
@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("lr", -0.1, "a finite number in the range [0, inf)"),
        ("lr", math.nan, "a finite number in the range [0, inf)"),
        ("lr", math.inf, "a finite number in the range [0, inf)"),
        ("lr", "0.1", "a finite number in the range [0, inf)"),
        ("lr", torch.tensor([0.1, 0.2]), "a finite number in the range [0, inf)"),
        ("lr", None, "a finite number in the range [0, inf)"),
        ("lam", -1e-4, "a finite number in the range [0, inf)"),
        ("lam", math.nan, "a finite number in the range [0, inf)"),
        ("lam", True, "a finite number in the range [0, inf)"),
        ("momentum", 1.0, "a finite number in the range [0, 1)"),
        ("momentum", -0.1, "a finite number in the range [0, 1)"),
        ("momentum", math.nan, "a finite number in the range [0, 1)"),
        ("weight_decay", -1, "a finite number in the range [0, inf)"),
        ("nesterov", True, "False where momentum is 0"),
        ("nesterov", "yes", "one of True, False"),
        ("on_nonfinite", "rase", "one of 'ignore', 'skip', 'raise'"),
        ("foreach", 1.5, "one of None, True, False"),
        ("foreach", 0, "one of None, True, False"),
        ("lr", 10**400, "a finite number in the range [0, inf)"),
        ("lr", torch.ones((), device="meta"), "a finite number in the range [0, inf)"),
    ],
)
def test_hyper_parameters_out_of_range(case: Case, name: str, value: Any, allowed: str) -> None:
    owner = case.cls.__name__
    for make in (
        lambda: case([param()], **{name: value}),
        lambda: case([{"params": [param()], name: value}]),
    ):
        with pytest.raises(InvalidParameterError) as caught:
            make()
        message = str(caught.value)
        assert f"The '{name}' parameter of {owner} must be {allowed}" in message
        assert f"Got {value!r} instead" in message
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, RsPruneError)


@pytest.mark.parametrize(
    ("cls", "name", "value", "allowed"),
    [
        (OBProxSG, "prox_steps", -1, "a whole number in the range [0, inf)"),
        (OBProxSG, "prox_steps", 2.5, "a whole number in the range [0, inf)"),
        (OBProxSG, "prox_steps", math.nan, "a whole number in the range [0, inf)"),
        (OBProxSG, "orthant_steps", 0, "a whole number in the range [1, inf)"),
        (OBProxSG, "orthant_steps", "same", "a whole number in the range [1, inf)"),
        (HSPG, "prox_steps", -1, "a whole number in the range [0, inf)"),
        (HSPG, "eps", 1.0, "a finite number in the range [0, 1)"),
        (HSPG, "eps", -0.1, "a finite number in the range [0, 1)"),
        (RDA, "gamma", 0, "a finite number in the range (0, inf)"),
        (RDA, "gamma", math.nan, "a finite number in the range (0, inf)"),
    ],
)
def test_own_hyper_parameters_out_of_range(cls: Any, name: str, value: Any, allowed: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        cls([param()], **{name: value})
    assert f"The '{name}' parameter of {cls.__name__} must be {allowed}. Got {value!r}" in str(
        caught.value
    )


def test_the_remedy_is_in_the_message() -> None:
    with pytest.raises(InvalidParameterError, match="Use lam=0 for parameters that shall not"):
        OBProxSG([param()], lam=-1)
    with pytest.raises(InvalidParameterError, match="Did you mean 'raise'"):
        OBProxSG([param()], on_nonfinite="rase")


def test_orthant_for_good_without_a_length() -> None:
    with pytest.raises(InvalidParameterError, match="Use orthant_steps=None"):
        OBProxSG([param()], prox_steps=0)


@every_case
@pytest.mark.parametrize("keyword", ["lamda", "learning_rate", "nestrov"])
def test_unknown_keyword(case: Case, keyword: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        case([param()], **{keyword: 0.1})
    assert f"The '{keyword}' parameter of {case.cls.__name__}" in str(caught.value)
    assert "Did you mean" in str(caught.value)


@every_case
def test_misspelt_key_of_a_group(case: Case) -> None:
    """A key near a known one is a slip; others are the user's own, as with every optimizer."""
    for slip in ("lambda", "lamda", "momentun", "learning_rate"):
        with pytest.raises(InvalidParameterError, match="Did you mean"):
            case([{"params": [param()], slip: 0.1}])
    own = {"name": "head", "initial_lr": 0.1, "max_momentum": 0.95, "lr_scale": 2, "steps": 3}
    case([{"params": [param()], **own}])


@every_case
def test_empty_groups(case: Case) -> None:
    for params in (
        [],
        iter(()),
        [{"params": []}],
        [{"params": [param()]}, {"params": iter(())}],
        [{"lr": 0.1}],
    ):
        with pytest.raises(InvalidParameterError, match="a non-empty list of parameters"):
            case(params)


@every_case
def test_refused_group_leaves_the_optimizer_as_it_was(case: Case) -> None:
    optimizer = case([param()])
    for bad in ({"params": [param()], "lr": -1}, {"params": [torch.ones(2, dtype=torch.int64)]}):
        with pytest.raises(InvalidParameterError):
            optimizer.add_param_group(bad)
        assert len(optimizer.param_groups) == 1


@every_case
def test_complex_parameters(case: Case) -> None:
    with pytest.raises(InvalidParameterError, match="real floating-point tensors"):
        case([nn.Parameter(torch.ones(2, dtype=torch.complex64))])


@every_case
def test_both_fast_forms(case: Case) -> None:
    with pytest.raises(InvalidParameterError, match="Choose one of the two"):
        case([param()], foreach=True, fused=True)


@every_case
@pytest.mark.filterwarnings("ignore:ProxSVRG.step without a snapshot")
def test_sparse_gradient(case: Case) -> None:
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = case(table.named_parameters())
    before = weights(table)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(GradientError, match=r"sparse gradient of parameter 'weight'.*sparse=False"):
        optimizer.step()
    assert_same_bits(before, weights(table))


@every_case
def test_bad_saved_state_is_refused_before_anything_changes(case: Case) -> None:
    net = small_net()
    optimizer = case(param_groups(net, lam=0.1))
    state = optimizer.state_dict()
    state["param_groups"][0]["lam"] = -1
    with pytest.raises(InvalidParameterError, match="'lam'"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lam"] == 0.1


def test_errors_survive_pickling() -> None:
    """Data loaders and process pools send errors through pickle."""
    error = InvalidParameterError("OBProxSG", "lam", "positive", -1, "Try 1e-4.")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)


def test_param_groups_refuses() -> None:
    with pytest.raises(InvalidParameterError, match="convolution or linear weights"):
        param_groups(nn.BatchNorm2d(3), lam=0.1)
    with pytest.raises(InvalidParameterError, match="'exclude' filter"):
        param_groups(nn.Linear(2, 2), lam=0.1, exclude=lambda *_: True)
    for bad in (-1, math.nan):
        with pytest.raises(InvalidParameterError, match="'lam' parameter of param_groups"):
            param_groups(nn.Linear(2, 2), lam=bad)
        with pytest.raises(InvalidParameterError, match="'weight_decay' parameter of param_groups"):
            param_groups(nn.Linear(2, 2), lam=0.1, weight_decay=bad)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"epochs": 0, "loader": 10}, "epochs"),
        ({"epochs": math.nan, "loader": 10}, "epochs"),
        ({"epochs": 5, "loader": 0}, "loader"),
        ({"epochs": 5, "loader": 10, "prox_epochs": -1}, "prox_epochs"),
        ({"epochs": 5, "loader": 10, "orthant_epochs": 0}, "orthant_epochs"),
        ({"epochs": 5, "loader": 10, "prox_epochs": 5, "orthant_epochs": None}, "prox_epochs"),
    ],
)
def test_phase_schedule_refuses(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"'{name}' parameter of phase_schedule"):
        phase_schedule(**arguments)


def test_phase_schedule_without_a_length() -> None:
    for loader in (iter([1, 2]), None, 2.5):
        with pytest.raises(InvalidParameterError, match="number of steps in an epoch"):
            phase_schedule(10, loader)


def test_diagnostics_refuse_other_optimizers() -> None:
    sgd = torch.optim.SGD([param()])
    for call in (lambda: reach(sgd, 5), lambda: wrongly_frozen(sgd)):
        with pytest.raises(InvalidParameterError, match="a sparse optimizer of rsprune"):
            call()


def test_wrongly_frozen_without_gradients() -> None:
    with pytest.raises(GradientError, match="there are none"):
        wrongly_frozen(OBProxSG([param()]))


def test_param_groups_takes_a_model_and_a_function() -> None:
    with pytest.raises(InvalidParameterError, match="not its parameters"):
        param_groups(nn.Linear(2, 2).parameters(), lam=0.1)
    with pytest.raises(InvalidParameterError, match="'exclude' parameter"):
        param_groups(nn.Linear(2, 2), lam=0.1, exclude="bias")


def test_state_of_an_optimizer_that_maximises() -> None:
    weight = param()
    sgd = torch.optim.SGD([weight], maximize=True)
    with pytest.raises(InvalidParameterError, match="'maximize'"):
        OBProxSG([weight]).load_state_dict(sgd.state_dict())


def test_prox_svrg_without_a_closure_after_a_snapshot() -> None:
    weight = param()
    optimizer = ProxSVRG([weight])

    def full() -> None:
        weight.grad = torch.ones(2, 2)

    optimizer.snapshot(full)
    with pytest.raises(InvalidParameterError, match="'closure' parameter of ProxSVRG"):
        optimizer.step()


def test_reach_refuses() -> None:
    with pytest.raises(InvalidParameterError, match="'steps' parameter of reach"):
        reach(OBProxSG([param()]), 0)
