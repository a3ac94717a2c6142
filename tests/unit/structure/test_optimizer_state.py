"""``prune(..., optimizer=...)``: the optimizer is cut along, and training goes on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

import rsprune
from rsprune.optim import HSPG, RDA, OBProxSG
from tests.surgery import (
    difference,
    half_drop,
    randomise,
    tensors_of,
    zeroed,
)
from tests.unit.structure.sample import Model, image, prune_half, surviving

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, 1e-4, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda params: torch.optim.SGD(params, 1e-4, momentum=0.9, nesterov=True),
    "adam": lambda params: torch.optim.Adam(params, 1e-2),
    "amsgrad": lambda params: torch.optim.AdamW(params, 1e-2, amsgrad=True),
    "rmsprop": lambda params: torch.optim.RMSprop(params, 1e-3, momentum=0.9, centered=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, 1e-2),
    "obprox-sg": lambda params: OBProxSG(params, 1e-4, lam=1e-2, momentum=0.9, prox_steps=1),
    "rda": lambda params: RDA(params, 1e-4, lam=1e-4, gamma=1e3),
    "hspg": lambda params: HSPG(params, 1e-4, lam=1e-2, momentum=0.9, prox_steps=1),
    "hspg-in-accelerate": lambda params: Accelerator(cpu=True).prepare(
        HSPG(params, 1e-4, lam=1e-2, momentum=0.9, prox_steps=1)
    ),
}
optimizers = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Two groups with hyper-parameters of their own."""
    norms = [p for m in (model.bn1, model.bn2) for p in m.parameters()]
    known = {id(p) for p in norms}
    rest = [p for p in model.parameters() if id(p) not in known]
    return [{"params": rest}, {"params": norms, "lr": 0.03, "weight_decay": 0.0, "name": "norms"}]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    model.eval()  # neither dropout nor batch statistics: slim and zeroed compute the same
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def trained(make: MakeOptimizer) -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    model, x = randomise(Model(), 0), image(dtype=torch.float64)
    optimizer = make(groups_of(model))
    for _ in range(3):
        step(model, optimizer, x)
    return model, optimizer, x


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, key: str) -> dict[str, Tensor]:
    return {name: optimizer.state[p][key] for name, p in model.named_parameters()}


@optimizers
def test_optimizer_state_is_cut_like_the_weights(make: MakeOptimizer) -> None:
    model, optimizer, x = trained(make)
    first = next(iter(model.parameters()))
    keys = [k for k, v in optimizer.state[first].items() if isinstance(v, Tensor) and v.dim()]
    before = {key: state_of(model, optimizer, key) for key in keys}
    counts = {key: optimizer.state[first][key] for key in optimizer.state[first] if key not in keys}
    slim, graph, drop = prune_half(model, x, optimizer=optimizer)
    assert keys
    for key in keys:
        expected = surviving(before[key], graph, drop)
        for name, value in state_of(slim, optimizer, key).items():
            assert torch.equal(value, expected[name]), (key, name)
    for p in slim.parameters():
        assert {key: optimizer.state[p][key] for key in counts} == counts


@optimizers
def test_optimizer_is_pointed_to_the_pruned_model(make: MakeOptimizer) -> None:
    model, optimizer, x = trained(make)
    changing = {"params", "members", "group_count"}
    settings = [{k: g[k] for k in g.keys() - changing} for g in optimizer.param_groups]
    places = [[id(p) for p in g["params"]] for g in optimizer.param_groups]
    names = {id(p): name for name, p in model.named_parameters()}
    slim, _, _ = prune_half(model, x, optimizer=optimizer)
    new = dict(slim.named_parameters())
    for group, place, setting in zip(optimizer.param_groups, places, settings, strict=True):
        assert {k: group[k] for k in group.keys() - changing} == setting
        expected = [new[names[i]] for i in place]
        assert len(group["params"]) == len(expected)
        assert all(a is b for a, b in zip(group["params"], expected, strict=True))
    assert set(map(id, optimizer.state)) == set(map(id, new.values()))


@optimizers
def test_training_goes_on_as_if_nothing_had_happened(make: MakeOptimizer) -> None:
    """Further steps equal those of the full model whose dropped units are zero and kept so."""
    model, optimizer, x = trained(make)
    graph = rsprune.trace(model, x)
    drop = half_drop(graph, 0)
    full = zeroed(model, graph, drop)
    mirror = make(groups_of(full))
    mirror.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    slim = rsprune.prune(model, graph, drop=drop, optimizer=optimizer)
    for _ in range(2):
        step(slim, optimizer, x)
        step(full, mirror, x)
        full.load_state_dict(zeroed(full, graph, drop).state_dict())
    expected = surviving(tensors_of(full), graph, drop)
    for name, tensor in slim.named_parameters():
        assert difference(tensor, expected[name]) <= 1e-8, name


@optimizers
def test_optimizer_works_before_its_first_step(make: MakeOptimizer) -> None:
    model, x = randomise(Model(), 0), image(dtype=torch.float64)
    optimizer = make(groups_of(model))
    slim, _, _ = prune_half(model, x, optimizer=optimizer)
    before = slim.conv1.weight.detach().clone()
    step(slim, optimizer, x)
    assert not torch.equal(slim.conv1.weight, before)


@optimizers
def test_optimizer_state_can_be_saved_afterwards(make: MakeOptimizer) -> None:
    model, optimizer, x = trained(make)
    slim, _, _ = prune_half(model, x, optimizer=optimizer)
    fresh = make(groups_of(slim))
    fresh.load_state_dict(optimizer.state_dict())
    step(slim, fresh, x)


def test_groups_of_hspg_are_cut_like_the_weights() -> None:
    """The groups that are left are those of an optimizer made for the pruned model."""
    model, optimizer, x = trained(OPTIMIZERS["hspg"])
    slim, _, _ = prune_half(model, x, optimizer=optimizer)
    fresh = OPTIMIZERS["hspg"](groups_of(slim))
    for group, expected in zip(optimizer.param_groups, fresh.param_groups, strict=True):
        assert group["group_count"] == expected["group_count"]
        for (dim, ids), (wanted, numbers) in zip(
            group["members"], expected["members"], strict=True
        ):
            assert dim == wanted
            assert torch.equal(ids, numbers)


def test_optimizer_of_some_parameters() -> None:
    model, x = randomise(Model(), 0), image(dtype=torch.float64)
    optimizer = torch.optim.SGD(model.fc.parameters(), 0.1, momentum=0.9)
    step(model, optimizer, x)
    slim, _, _ = prune_half(model, x, optimizer=optimizer)
    (group,) = optimizer.param_groups
    assert all(a is b for a, b in zip(group["params"], slim.fc.parameters(), strict=True))
    assert optimizer.state[slim.fc.weight]["momentum_buffer"].shape == slim.fc.weight.shape


def test_scheduler_goes_on() -> None:
    model, optimizer, x = trained(OPTIMIZERS["sgd"])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    slim, _, _ = prune_half(model, x, optimizer=optimizer)
    step(slim, optimizer, x)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(5e-5)


def test_optimizer_is_left_alone_when_pruning_fails() -> None:
    model, optimizer, x = trained(OPTIMIZERS["sgd"])
    graph = rsprune.trace(model, x)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(rsprune.RsPruneError):
        rsprune.prune(model, graph, drop={"nothing": [0]}, optimizer=optimizer)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert optimizer.param_groups[0]["params"][0] is next(iter(model.parameters()))
    for index, state in before["state"].items():
        assert torch.equal(after["state"][index]["momentum_buffer"], state["momentum_buffer"])
