"""The pruned model is the same every time, and keeps what it can of the full one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import rsprune
from rsprune.structure.groups import ChannelGraph
from tests.gauntlet import ENTRIES
from tests.surgery import (
    difference,
    evaluate,
    half_drop,
    randomise,
    tensors_of,
    zeroed,
)
from tests.unit.structure.sample import Model, image, prune_half, surviving


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
