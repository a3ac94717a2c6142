"""Cuts a model: every parameter and buffer loses the indices of the dropped units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from rsprune.shadow import Arguments, Shadow, named_tensors, replica
from rsprune.structure.attributes import resize
from rsprune.structure.check import Checker, Failure, surviving
from rsprune.structure.layout import Labels
from rsprune.structure.numbers import difference, outputs, set_to_zero
from rsprune.structure.tracer import Record, TensorLabels


class Attribute(NamedTuple):
    """A width that a module holds, and where in a run it shows: output and dimension of a step.

    The attribute is ``factor`` times that width.
    """

    module: str
    name: str
    place: int | None  # the position in a tuple or list
    record: int
    step: int
    output: int
    dim: int
    factor: int = 1


def survivors(labels: TensorLabels, alive: Labels) -> dict[str, dict[int, Tensor]]:
    """The indices that stay, for every dimension that loses some."""
    kept: dict[str, dict[int, Tensor]] = {}
    for name, dims in labels.items():
        for dim, own in dims.items():
            mask = alive[own]
            if not mask.all():
                kept.setdefault(name, {})[dim] = torch.from_numpy(np.flatnonzero(mask))
    return kept


def in_format_of(tensor: Tensor, value: Tensor) -> Tensor:
    """``value`` in the memory format of ``tensor``."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(tensor.dim())
    if wanted is not None and tensor.is_contiguous(memory_format=wanted):
        return value.contiguous(memory_format=wanted)
    return value


def cut_tensor(tensor: Tensor, kept: Mapping[int, Tensor]) -> Tensor:
    """A copy of ``tensor`` without the indices that go; its memory format and type stay."""
    value = tensor.detach()
    for dim, index in kept.items():
        value = value.index_select(dim, index.to(value.device))
    if value is tensor or value.data_ptr() == tensor.data_ptr():
        value = value.clone()
    else:
        value = in_format_of(tensor, value)
    if not isinstance(tensor, nn.Parameter):
        return value
    parameter = nn.Parameter(value, tensor.requires_grad)
    vars(parameter).update(vars(tensor))
    return parameter


def cut_model(
    model: nn.Module, kept: Mapping[str, Mapping[int, Tensor]], values: Mapping[Attribute, int]
) -> nn.Module:
    """A new model around the tensors that are left."""
    tensors = {name: cut_tensor(t, kept.get(name, {})) for name, t in named_tensors(model).items()}
    slim = replica(model, tensors)
    set_widths(slim, values)
    return slim


def set_widths(model: nn.Module, values: Mapping[Attribute, int]) -> None:
    """Make the attributes of all modules agree with their parameters."""
    resize(model)
    for attribute, value in values.items():
        module = model.get_submodule(attribute.module)
        if attribute.place is None:
            setattr(module, attribute.name, value)
        else:
            held = getattr(module, attribute.name)
            new = [*held[: attribute.place], value, *held[attribute.place + 1 :]]
            setattr(module, attribute.name, type(held)(new))


def attribute_values(
    attributes: Sequence[Attribute], records: Sequence[Record], alive: Labels
) -> dict[Attribute, int]:
    """What the attributes must be for the units that are alive."""
    values = {}
    for attribute in attributes:
        step = records[attribute.record].steps[attribute.step]
        shape, _ = surviving(step.shapes[attribute.output], step.layouts[attribute.output], alive)
        values[attribute] = shape[attribute.dim] * attribute.factor
    return values


@dataclass(frozen=True)
class Traced:
    """A model and the record of its runs."""

    model: nn.Module
    arguments: Arguments
    labels: TensorLabels
    records: Sequence[Record]
    real: bool


def check_cut(
    traced: Traced, root: Labels, alive: Labels, attributes: Sequence[Attribute]
) -> list[Failure]:
    """Cut a double of a model and run it; what goes wrong."""
    kept = survivors(traced.labels, alive)
    cut = cut_tensor if traced.real else _shell
    tensors = {
        name: cut(tensor, kept.get(name, {}))
        for name, tensor in named_tensors(traced.model).items()
    }
    shadow = Shadow(traced.model, traced.arguments, real=traced.real, tensors=tensors)
    set_widths(shadow.model, attribute_values(attributes, traced.records, alive))
    left = {
        name: {dim: own[alive[own]] for dim, own in dims.items()}
        for name, dims in traced.labels.items()
    }
    return Checker(shadow, left, traced.records, alive, root).check()


def same_in_numbers(traced: Traced, alive: Labels, attributes: Sequence[Attribute]) -> bool:
    """Whether the cut model computes what the zeroed full one computes, on random weights.

    Labels cannot be followed everywhere once a dimension has size 1; numbers can.
    """
    tensors = named_tensors(traced.model)
    if any(tensor.is_meta for tensor in tensors.values()):
        return False
    full = replica(traced.model, {name: _random_like(t) for name, t in tensors.items()}).eval()
    values = attribute_values(attributes, traced.records, alive)
    slim = cut_model(full, survivors(traced.labels, alive), values)
    set_to_zero(full, traced.labels, alive)
    small = tree_map_only(
        Tensor, lambda t: t * 1e-3 if t.is_floating_point() else t, traced.arguments
    )
    try:
        for arguments in (traced.arguments, small):  # small ones saturate no gate and no softmax
            expected, actual = (outputs(model, arguments) for model in (full, slim))
            if difference(expected, actual) > 1e-8:
                return False
        outputs(slim.train(), traced.arguments)
    except Exception:  # whatever the model's own code raises, it does not run as before
        return False
    return True


def _random_like(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor.clone()
    if not isinstance(tensor, nn.Parameter):
        return tensor.detach().double()
    generator = torch.Generator().manual_seed(tensor.numel())
    value = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    return nn.Parameter(value.to(tensor.device) * tensor[:1].numel() ** -0.5, False)


def _shell(tensor: Tensor, kept: Mapping[int, Tensor]) -> Tensor:
    """The shape of a cut tensor without its data."""
    if not kept:
        return tensor
    shape = [len(kept[d]) if d in kept else size for d, size in enumerate(tensor.shape)]
    shell = torch.empty(shape, dtype=tensor.dtype, device="meta")
    return nn.Parameter(shell, False) if isinstance(tensor, nn.Parameter) else shell


def cut_optimizer(
    optimizer: torch.optim.Optimizer,
    old: nn.Module,
    new: nn.Module,
    kept: Mapping[str, Mapping[int, Tensor]],
) -> None:
    """Point ``optimizer`` at the new model's parameters, and cut what it remembers of them.

    One that numbers the indices of its parameters outside of its state, as HSPG does for its
    groups, has a method ``cut_members`` for it.
    """
    names: dict[Tensor, str] = {p: name for name, p in old.named_parameters()}
    fresh = named_tensors(new)
    optimizer = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's
    if hasattr(optimizer, "cut_members"):
        optimizer.cut_members({p: kept.get(name, {}) for p, name in names.items()})
    for group in optimizer.param_groups:
        group["params"] = [fresh[names[p]] if p in names else p for p in group["params"]]
    for parameter in list(optimizer.state):
        if parameter in names:
            name = names[parameter]
            state = optimizer.state.pop(parameter)
            optimizer.state[fresh[name]] = {
                key: _cut_state(value, parameter, kept.get(name, {}))
                for key, value in state.items()
            }


def _cut_state(value: Any, parameter: Tensor, kept: Mapping[int, Tensor]) -> Any:
    if not isinstance(value, Tensor) or value.dim() != parameter.dim() or not kept:
        return value
    # factored moments have size 1 along some dimensions
    own = {d: index for d, index in kept.items() if value.shape[d] == parameter.shape[d]}
    return cut_tensor(value, own)
