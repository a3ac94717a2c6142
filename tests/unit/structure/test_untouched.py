"""Tracing and pruning leave the model as it was, and the pruned model keeps what it can."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

import rsprune
from rsprune.optim import HSPG, RDA, OBProxSG
from rsprune.structure.groups import ChannelGraph
from tests.gauntlet import ENTRIES
from tests.surgery import (
    Drop,
    cuts,
    difference,
    evaluate,
    half_drop,
    randomise,
    tensors_of,
    train_once,
    zeroed,
)


class Model(nn.Module):
    """A bit of everything that could be disturbed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.2)
        self.conv2 = nn.Conv2d(8, 6, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.scale = nn.Parameter(torch.rand(6, 1, 1))
        self.register_buffer("mean", torch.rand(1, 3, 1, 1))
        self.register_buffer("table", torch.rand(8, 1, 1), persistent=False)
        self.register_buffer("steps", torch.tensor(7))
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop((self.bn1(self.conv1(x - self.mean)) + self.table).relu())
        return self.fc((self.bn2(self.conv2(x)) * self.scale).relu().mean((2, 3)))


def image(**settings: Any) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(4, 3, 8, 8, generator=generator).to(**settings)


@pytest.fixture
def model() -> nn.Module:
    """Half in training and half in evaluation mode, one layer frozen, gradients present."""
    model = randomise(Model(), 0)
    train_once(model, image(dtype=torch.float64))
    model.bn1.eval()
    model.conv2.requires_grad_(False)
    return model


def prune_half(
    model: nn.Module, x: Tensor, **settings: Any
) -> tuple[nn.Module, ChannelGraph, Drop]:
    graph = rsprune.trace(model, x)
    drop = half_drop(graph, 0)
    assert len(drop) == 2
    return rsprune.prune(model, graph, drop=drop, **settings), graph, drop


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


@pytest.mark.filterwarnings("ignore::rsprune.RsPruneWarning")
def test_tracing_twice_finds_the_same() -> None:
    for name in ("c2f", "shuffle_units", "padded_shortcut", "head_in_training_only"):
        entry = ENTRIES[name]
        model = randomise(entry.make(), 0)
        inputs = entry.inputs(torch.Generator().manual_seed(0))
        first = rsprune.trace(model, inputs)
        second = rsprune.trace(copy.deepcopy(model), inputs)
        assert described(first) == described(second)


def described(graph: ChannelGraph) -> list[tuple[object, ...]]:
    return [(g.name, g.size, g.prunable, g.reason, g.slots) for g in graph.groups]


def test_the_batch_of_the_example_does_not_matter(model: nn.Module) -> None:
    one, four = (rsprune.trace(model, image(dtype=torch.float64)[:n]) for n in (1, 4))
    assert described(one) == described(four)


def test_weights_and_mode_do_not_matter(model: nn.Module) -> None:
    x = image(dtype=torch.float64)
    first = rsprune.trace(model, x)
    assert described(rsprune.trace(randomise(model, 1).eval(), x)) == described(first)


def test_pruning_twice_gives_the_same_bits(model: nn.Module) -> None:
    x = image(dtype=torch.float64)
    (one, _, _), (two, _, _) = prune_half(model, x), prune_half(model, x)
    for a, b in zip(tensors_of(one).values(), tensors_of(two).values(), strict=True):
        assert torch.equal(a, b)


def test_pruning_nothing_is_a_copy(model: nn.Module) -> None:
    x = image(dtype=torch.float64)
    copied = rsprune.prune(model, rsprune.trace(model, x), drop={})
    assert copied is not model
    for (name, a), b in zip(tensors_of(model).items(), tensors_of(copied).values(), strict=True):
        assert torch.equal(a, b), name
        assert a.data_ptr() != b.data_ptr()
    assert difference(evaluate(copied, x), evaluate(model, x)) == 0


def test_a_graph_can_be_used_again_for_other_weights(model: nn.Module) -> None:
    """The graph knows of shapes only: a copy of the model, or its later weights, are served too."""
    x = image(dtype=torch.float64)
    graph = rsprune.trace(model, x)
    other = randomise(copy.deepcopy(model), 9)
    drop = half_drop(graph, 1)
    slim = rsprune.prune(other, graph, drop=drop)
    assert difference(evaluate(slim, x), evaluate(zeroed(other, graph, drop), x)) <= 1e-12


def test_pruning_again(model: nn.Module) -> None:
    """A pruned model is a model like any other."""
    x = image(dtype=torch.float64)
    slim, _, _ = prune_half(model, x)
    slimmer, graph, drop = prune_half(slim, x)
    assert slimmer.conv1.out_channels == 2
    assert difference(evaluate(slimmer, x), evaluate(zeroed(slim, graph, drop), x)) <= 1e-12


def test_the_pruned_model_is_of_the_same_kind(model: nn.Module) -> None:
    slim, _, _ = prune_half(model, image(dtype=torch.float64))
    assert [type(m) for m in slim.modules()] == [type(m) for m in model.modules()]
    assert list(slim.state_dict()) == list(model.state_dict())
    assert [name for name, _ in slim.named_buffers()] == [name for name, _ in model.named_buffers()]
    assert slim.conv1.out_channels == slim.bn1.num_features == slim.conv2.in_channels == 4
    assert slim.conv2.out_channels == slim.bn2.num_features == slim.fc.in_features == 3
    assert slim.table.shape == (4, 1, 1)
    assert slim.scale.shape == (3, 1, 1)


def test_the_pruned_model_keeps_modes_and_flags(model: nn.Module) -> None:
    slim, _, _ = prune_half(model, image(dtype=torch.float64))
    assert [m.training for m in slim.modules()] == [m.training for m in model.modules()]
    flags = [p.requires_grad for p in model.parameters()]
    assert [p.requires_grad for p in slim.parameters()] == flags
    assert all(p.is_leaf for p in slim.parameters())


def test_the_pruned_model_keeps_the_surviving_values(model: nn.Module) -> None:
    slim, graph, drop = prune_half(model, image(dtype=torch.float64))
    for name, expected in surviving(tensors_of(model), graph, drop).items():
        assert torch.equal(tensors_of(slim)[name], expected), name


def surviving(tensors: dict[str, Tensor], graph: ChannelGraph, drop: Drop) -> dict[str, Tensor]:
    """What is left of ``tensors``, by plain indexing."""
    left = dict(tensors)
    for (name, dim), gone in cuts(graph, drop).items():
        if name in left:
            kept = [i for i in range(tensors[name].shape[dim]) if i not in gone]
            left[name] = left[name].index_select(dim, torch.tensor(kept))
    return left


def test_the_pruned_model_keeps_buffers(model: nn.Module) -> None:
    slim, _, _ = prune_half(model, image(dtype=torch.float64))
    assert "table" not in slim.state_dict()
    assert slim.steps == 7
    assert slim.steps.dtype == torch.int64
    assert torch.equal(slim.mean, model.mean)
    assert torch.equal(slim.bn1.num_batches_tracked, model.bn1.num_batches_tracked)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_pruned_model_keeps_dtypes(dtype: torch.dtype) -> None:
    model = randomise(Model(), 0).to(dtype)
    slim, _, _ = prune_half(model, image(dtype=dtype))
    dtypes = [tensor.dtype for tensor in tensors_of(model).values()]
    assert [tensor.dtype for tensor in tensors_of(slim).values()] == dtypes
    assert evaluate(slim, image(dtype=dtype)).dtype == dtype


def test_mixed_dtypes_are_kept() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 5).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.conv(x).relu().mean((2, 3)).double())

    model = Mixed()
    graph = rsprune.trace(model, image())
    slim = rsprune.prune(model, graph, drop=half_drop(graph, 0))
    assert slim.conv.weight.shape == (4, 3, 3, 3)
    assert slim.conv.weight.dtype == torch.float32
    assert slim.fc.weight.dtype == torch.float64


def test_the_pruned_model_keeps_channels_last(model: nn.Module) -> None:
    model.to(memory_format=torch.channels_last)
    x = image(dtype=torch.float64).to(memory_format=torch.channels_last)
    slim, graph, drop = prune_half(model, x)
    for layer in (slim.conv1, slim.conv2):
        assert layer.weight.is_contiguous(memory_format=torch.channels_last)
        assert not layer.weight.is_contiguous()
    assert model.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert difference(evaluate(slim, x), evaluate(zeroed(model, graph, drop), x)) <= 1e-12


def test_the_pruned_model_is_contiguous(model: nn.Module) -> None:
    slim, _, _ = prune_half(model, image(dtype=torch.float64))
    for tensor in tensors_of(slim).values():
        assert tensor.is_contiguous()
        # no parameter holds on to the memory of the full one
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_the_pruned_model_keeps_hooks(model: nn.Module) -> None:
    seen: list[tuple[int, ...]] = []
    model.conv1.register_forward_hook(lambda _, __, out: seen.append(tuple(out.shape)))
    model.bn1.register_forward_pre_hook(lambda _, args: seen.append(tuple(args[0].shape)))
    x = image(dtype=torch.float64)
    slim, _, _ = prune_half(model, x)
    seen.clear()
    evaluate(slim, x)
    assert seen == [(4, 4, 8, 8), (4, 4, 8, 8)]


def test_the_pruned_model_has_no_gradients_of_other_shapes(model: nn.Module) -> None:
    slim, _, _ = prune_half(model, image(dtype=torch.float64))
    for p in slim.parameters():
        assert p.grad is None or p.grad.shape == p.shape


def test_tied_parameters_stay_tied() -> None:
    for name, (one, two) in {
        "weights_tied_by_name": ("embed", "out"),
        "weights_tied_between_modules": ("a", "b"),
    }.items():
        entry = ENTRIES[name]
        model = randomise(entry.make(), 0)
        graph = rsprune.trace(model, entry.inputs(torch.Generator().manual_seed(0)))
        slim = rsprune.prune(model, graph, drop=half_drop(graph, 0))
        assert slim.get_submodule(one).weight is slim.get_submodule(two).weight
        assert slim.get_submodule(one).weight.numel() < model.get_submodule(one).weight.numel()


def test_a_module_at_two_places_stays_one() -> None:
    shared = nn.Conv2d(8, 8, 3, padding=1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), shared, nn.ReLU(), shared, nn.Conv2d(8, 5, 3))
    graph = rsprune.trace(model, image())
    slim = rsprune.prune(model, graph, drop=half_drop(graph, 0))
    assert slim[1] is slim[3]
    assert slim[1].weight.shape[:2] == (4, 4)


# -- optimizers ---------------------------------------------------------------------------------

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
