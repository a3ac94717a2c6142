"""Helpers to check surgery: random weights and drops, the zeroed model, differences of outputs."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rsprune.structure.groups import ChannelGraph

Drop = dict[str, list[int]]
TOLERANCE = 1e-5
# A dropped unit is made this small, not zero: a norm of its weights is then no 0/0.
ZERO = 1e-120


def randomise(model: nn.Module, seed: int) -> nn.Module:
    """Give ``model`` float64 weights and statistics of which none is zero or one."""
    generator = torch.Generator().manual_seed(seed)
    model.double()
    with torch.no_grad():
        for tensor in model.parameters():
            fan_in = max(1, tensor[0].numel()) if tensor.dim() > 1 else 1
            tensor.normal_(0, (2 / fan_in) ** 0.5, generator=generator)
        for name, tensor in model.named_buffers():
            if name.endswith("running_mean"):
                tensor.normal_(0, 0.5, generator=generator)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 2, generator=generator)
    return model


def half_drop(graph: ChannelGraph, seed: int) -> Drop:
    """Half of the units of every prunable group, at random."""
    return _drop(graph, seed, lambda size, _: size // 2)


def uneven_drop(graph: ChannelGraph, seed: int) -> Drop:
    """Any number of the units of every prunable group but the last one, at random."""
    return _drop(graph, seed, lambda size, rng: rng.randrange(size))


def all_but_one(graph: ChannelGraph, seed: int) -> Drop:
    """All units of every prunable group but one, at random."""
    return _drop(graph, seed, lambda size, _: size - 1)


def _drop(graph: ChannelGraph, seed: int, count: Any) -> Drop:
    rng = random.Random(seed)
    drop = {
        group.name: rng.sample(range(group.size), count(group.size, rng))
        for group in graph.groups
        if group.prunable
    }
    return {name: units for name, units in drop.items() if units}


def cuts(graph: ChannelGraph, drop: Drop) -> dict[tuple[str, int], list[int]]:
    """The indices that ``drop`` takes away, by tensor and dimension."""
    found: dict[tuple[str, int], set[int]] = {}
    for group in graph.groups:
        for tensor, dim, positions in group.slots:
            gone = (i for unit in drop.get(group.name, ()) for i in positions[unit])
            found.setdefault((tensor, dim), set()).update(gone)
    return {key: sorted(gone) for key, gone in found.items() if gone}


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, under each of their names."""
    found: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    found.update(model.named_buffers(remove_duplicate=False))
    return found


def zeroed(model: nn.Module, graph: ChannelGraph, drop: Drop) -> nn.Module:
    """A copy of ``model`` in which every slot of the dropped units is zero."""
    result = copy.deepcopy(model)
    tensors = tensors_of(result)
    with torch.no_grad():
        for (name, dim), gone in cuts(graph, drop).items():
            tensor = tensors[name]
            nothing = ZERO if tensor.is_floating_point() else 0
            tensor.index_fill_(dim, torch.tensor(gone), nothing)
    return result


def expected_shapes(
    model: nn.Module, graph: ChannelGraph, drop: Drop
) -> dict[str, tuple[int, ...]]:
    """The shapes of all parameters and buffers after ``drop``."""
    tensors = tensors_of(model)
    shapes = {id(tensor): list(tensor.shape) for tensor in tensors.values()}
    for (name, dim), gone in cuts(graph, drop).items():
        shapes[id(tensors[name])][dim] -= len(gone)
    return {name: tuple(shapes[id(tensor)]) for name, tensor in tensors.items()}


def tensors_in(output: Any) -> Iterator[Tensor]:
    """The tensors of a nested output, in order."""
    if isinstance(output, Tensor):
        yield output
    elif dataclasses.is_dataclass(output):
        yield from tensors_in(vars(output))
    elif isinstance(output, Mapping):
        yield from tensors_in(list(output.values()))
    elif isinstance(output, list | tuple):
        for part in output:
            yield from tensors_in(part)


def difference(output: Any, reference: Any) -> float:
    """The largest difference of two nested outputs, relative to each tensor's largest entry."""
    pairs = list(zip(tensors_in(output), tensors_in(reference), strict=True))
    assert pairs, "the outputs hold no tensor"
    return max(_difference(a, b) for a, b in pairs)


def _difference(output: Tensor, reference: Tensor) -> float:
    assert output.shape == reference.shape
    assert output.dtype == reference.dtype
    if not reference.is_floating_point():
        return 0.0 if torch.equal(output, reference) else float("inf")
    assert reference.isfinite().all()
    gap = (output - reference).abs().max() / reference.abs().max().clamp_min(1e-12)
    return float("inf") if gap.isnan() else gap.item()


def call(model: nn.Module, inputs: Any) -> Any:
    """Run ``model`` on example inputs in the forms that ``trace`` takes."""
    if isinstance(inputs, tuple):
        return model(*inputs)
    if isinstance(inputs, dict) and _names(model) >= set(inputs):
        return model(**inputs)
    return model(inputs)


def _names(model: nn.Module) -> set[str]:
    code = type(model).forward.__code__
    return set(code.co_varnames[1 : code.co_argcount])


@torch.no_grad()
def evaluate(model: nn.Module, inputs: Any) -> Any:
    """The model's output in evaluation mode, on copies of the inputs; the mode is kept."""
    modes = {module: module.training for module in model.modules()}
    output = call(model.eval(), copy.deepcopy(inputs))
    for module, mode in modes.items():
        module.training = mode
    return output


def train_once(model: nn.Module, inputs: Any) -> None:
    """A forward and a backward in training mode; the gradients have to be finite."""
    model.train()
    output = call(model, copy.deepcopy(inputs))
    loss = sum(t.square().mean() for t in tensors_in(output) if t.requires_grad)
    assert isinstance(loss, Tensor), "no output takes part in training"
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)
