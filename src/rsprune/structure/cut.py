"""Cuts a model: every parameter and buffer loses the indices of the dropped units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rsprune.shadow import Arguments, Shadow, named_tensors, replica
from rsprune.structure.attributes import resize
from rsprune.structure.check import Checker, Failure, surviving
from rsprune.structure.layout import Labels
from rsprune.structure.tracer import Record, TensorLabels


class Attribute(NamedTuple):
    """A width that a module holds, and where in a run it shows: output and dimension of a step."""

    module: str
    name: str
    place: int | None  # the position in a tuple or list
    record: int
    step: int
    output: int
    dim: int


def survivors(labels: TensorLabels, alive: Labels) -> dict[str, dict[int, Tensor]]:
    """The indices that stay, for every dimension that loses some."""
    kept: dict[str, dict[int, Tensor]] = {}
    for name, dims in labels.items():
        for dim, own in dims.items():
            mask = alive[own]
            if not mask.all():
                kept.setdefault(name, {})[dim] = torch.from_numpy(np.flatnonzero(mask))
    return kept


def cut_tensor(tensor: Tensor, kept: Mapping[int, Tensor]) -> Tensor:
    """A copy of ``tensor`` without the indices that go; its memory format and type stay."""
    value = tensor.detach()
    for dim, index in kept.items():
        value = value.index_select(dim, index.to(value.device))
    if value is tensor or value.data_ptr() == tensor.data_ptr():
        value = value.clone()
    elif tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        value = value.contiguous(memory_format=torch.channels_last)
    elif tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        value = value.contiguous(memory_format=torch.channels_last_3d)
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
    for module in model.modules():
        resize(module)
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
        shape, _ = surviving(
            step.shapes[attribute.output], step.layouts[attribute.output], alive
        )
        values[attribute] = shape[attribute.dim]
    return values


def check_cut(
    model: nn.Module,
    arguments: Arguments,
    labels: TensorLabels,
    records: Sequence[Record],
    root: Labels,
    alive: Labels,
    attributes: Sequence[Attribute],
    *,
    real: bool,
) -> list[Failure]:
    """Cut a double of ``model`` and run it; what goes wrong."""
    kept = survivors(labels, alive)
    tensors = named_tensors(model)
    if not real:
        tensors = {name: _shell(t, kept.get(name, {})) for name, t in tensors.items()}
    else:
        tensors = {name: cut_tensor(t, kept.get(name, {})) for name, t in tensors.items()}
    shadow = Shadow(model, arguments, real=real, tensors=tensors)
    set_widths(shadow.model, attribute_values(attributes, records, alive))
    left = {
        name: {dim: own[alive[own]] for dim, own in dims.items()} for name, dims in labels.items()
    }
    return Checker(shadow, left, records, alive, root).check()


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
    """Point ``optimizer`` at the new model's parameters, and cut what it remembers of them."""
    names = {parameter: name for name, parameter in old.named_parameters()}
    fresh = named_tensors(new)
    for group in optimizer.param_groups:
        group["params"] = [
            fresh[names[p]] if p in names else p for p in group["params"]
        ]
    for parameter in list(optimizer.state):
        if parameter in names:
            name = names[parameter]
            state = optimizer.state.pop(parameter)
            optimizer.state[fresh[name]] = {
                key: _cut_state(value, parameter, kept.get(name, {})) for key, value in state.items()
            }


def _cut_state(value: Any, parameter: Tensor, kept: Mapping[int, Tensor]) -> Any:
    if isinstance(value, Tensor) and value.shape == parameter.shape:
        return cut_tensor(value, kept)
    return value
