"""Tracing and pruning leave the model as it was."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rsprune
from tests.gauntlet import ENTRIES
from tests.surgery import (
    randomise,
    tensors_of,
    train_once,
)
from tests.unit.structure.sample import image, prune_half


def trace_only(model: nn.Module, x: Tensor) -> None:
    rsprune.trace(model, x)


def trace_and_prune(model: nn.Module, x: Tensor) -> None:
    prune_half(model, x)


def prune_and_verify(model: nn.Module, x: Tensor) -> None:
    slim, graph, drop = prune_half(model, x)
    rsprune.verify(model, slim, graph, drop, x)


def train_the_pruned(model: nn.Module, x: Tensor) -> None:
    """The pruned model shares no memory with the full one."""
    slim, _, _ = prune_half(model, x)
    train_once(slim, x)
    with torch.no_grad():
        for tensor in tensors_of(slim).values():
            tensor.zero_()


actions = pytest.mark.parametrize(
    "action", [trace_only, trace_and_prune, prune_and_verify, train_the_pruned]
)
Action = Callable[[nn.Module, Tensor], None]


@actions
def test_weights_and_buffers_stay(model: nn.Module, action: Action) -> None:
    """The same tensor objects, with the same bits and strides."""
    before = {name: (t, t.detach().clone(), t.stride()) for name, t in tensors_of(model).items()}
    action(model, image(dtype=torch.float64))
    after = tensors_of(model)
    assert after.keys() == before.keys()
    for name, (tensor, values, stride) in before.items():
        assert after[name] is tensor
        assert torch.equal(tensor, values)
        assert tensor.stride() == stride
        assert type(tensor) is type(after[name])
        # nothing the engine keeps for itself hangs on the user's tensors
        assert not vars(tensor)


@actions
def test_modes_gradients_and_flags_stay(model: nn.Module, action: Action) -> None:
    modes = {name: module.training for name, module in model.named_modules()}
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    gradients = {name: (p.grad, p.grad.clone()) for name, p in model.named_parameters()}
    action(model, image(dtype=torch.float64))
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert {name: p.requires_grad for name, p in model.named_parameters()} == flags
    for name, p in model.named_parameters():
        assert p.grad is gradients[name][0]
        assert torch.equal(p.grad, gradients[name][1])


@actions
def test_attributes_stay(model: nn.Module, action: Action) -> None:
    """Widths, settings and dictionaries of all modules are as before, with nothing added."""

    def attributes() -> dict[str, dict[str, object]]:
        plain = (bool, int, float, str, tuple, type(None))
        return {
            name: {k: v if isinstance(v, plain) else id(v) for k, v in vars(module).items()}
            for name, module in model.named_modules()
        }

    before = attributes()
    action(model, image(dtype=torch.float64))
    assert attributes() == before


@actions
def test_hooks_stay_and_are_not_fired_on_the_model(model: nn.Module, action: Action) -> None:
    seen: list[nn.Module] = []
    handle = model.conv1.register_forward_hook(lambda module, *_: seen.append(module))
    model.conv2.register_full_backward_hook(lambda *_: None)
    model.bn1.register_forward_pre_hook(lambda *_: None)
    model.conv1.weight.register_hook(lambda grad: grad)
    hooks = [dict(m._forward_hooks) for m in model.modules()]
    action(model, image(dtype=torch.float64))
    assert [dict(m._forward_hooks) for m in model.modules()] == hooks
    assert len(model.conv2._backward_hooks) == 1
    assert len(model.bn1._forward_pre_hooks) == 1
    assert len(model.conv1.weight._backward_hooks) == 1
    if action is trace_only:
        assert model.conv1 not in seen
    handle.remove()
    assert not model.conv1._forward_hooks


@actions
def test_random_generators_stay(model: nn.Module, action: Action) -> None:
    x = image(dtype=torch.float64)
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    if action is train_the_pruned:
        trace_and_prune(model, x)
    else:
        action(model, x)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


@actions
def test_inputs_and_global_settings_stay(model: nn.Module, action: Action) -> None:
    x = image(dtype=torch.float64).requires_grad_()
    values = x.detach().clone()
    settings = (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads())
    fast = torch.backends.mha.get_fastpath_enabled()
    action(model, x)
    assert torch.equal(x, values)
    assert x.requires_grad
    if action is not train_the_pruned:
        assert x.grad is None
    assert (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()) == settings
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_a_dict_of_inputs_stays() -> None:
    entry = ENTRIES["input_keywords"]
    model = randomise(entry.make(), 0)
    inputs = entry.inputs(torch.Generator().manual_seed(0))
    before = dict(inputs)
    rsprune.trace(model, inputs)
    assert list(inputs.items()) == list(before.items())
