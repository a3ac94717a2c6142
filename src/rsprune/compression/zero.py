"""Units that are exactly zero, which can go without any change of the outputs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_map_only

from rsprune.compression.activations import show_inputs
from rsprune.compression.roles import Place, find_roles
from rsprune.compression.select import per_unit
from rsprune.errors import VerificationError
from rsprune.shadow import Arguments, check_model
from rsprune.structure.groups import ChannelGraph
from rsprune.structure.numbers import difference, in_double, outputs
from rsprune.structure.prune import check_graph
from rsprune.structure.tracer import tensors_in

TOLERANCE = 1e-5
Slot = tuple[Tensor, int, int]
Mask = npt.NDArray[np.bool_]


def unit_slots(model: nn.Module, graph: ChannelGraph) -> list[list[Slot]]:
    """Groups for :class:`rsprune.optim.HSPG`: for every unit, the parameters that make it.

    What HSPG sets to zero with these groups is what ``compress(mode="zero-groups")`` removes::

        HSPG(model.parameters(), lr=0.1, lam=1e-3, groups=unit_slots(model, graph))

    Args:
        model: the model that was traced.
        graph: what :func:`rsprune.trace` found out about it.
    """
    check_model("unit_slots", model)
    check_graph("unit_slots", model, graph)
    roles, parameters = find_roles(model), dict(model.named_parameters())
    along: dict[str, int] = {}  # the optimizer takes the slots of a parameter along one dimension
    found: list[list[Slot]] = []
    for group in graph.prunable:
        units: list[list[Slot]] = [[] for _ in range(group.size)]
        for tensor, dim, positions in roles.makers(group):
            parameter = parameters[tensor]
            if parameter.requires_grad and along.setdefault(tensor, dim) == dim:
                for slots, own in zip(units, positions.tolist(), strict=True):
                    slots.extend((parameter, dim, index) for index in own)
        found.extend(slots for slots in units if slots)
    return found


def dead_units(model: nn.Module, graph: ChannelGraph) -> dict[str, list[int]]:
    """By group, the units that are zero: nothing makes them, or nothing reads them.

    One unit of every group is left out, and so are groups over which a norm takes statistics.
    """
    roles, parameters = find_roles(model), dict(model.named_parameters())
    silent = _silent_inputs(model, graph)
    found = {}
    for group in graph.prunable:
        makers, readers = roles.makers(group), roles.readers(group)
        if any(tensor.rpartition(".")[0] in graph.statistics for tensor, _, _ in group.places):
            continue
        made = _some_nonzero(makers, parameters, group.size)
        read = _some_nonzero(readers, parameters, group.size)
        for place in readers:  # what nothing makes can still be a constant, sigmoid(0) for one
            tensor, dim, positions = place
            made |= (
                ~silent[tensor][positions].all(axis=1)
                if tensor in silent and dim == 1
                else _some_nonzero([place], parameters, group.size)
            )
        dead = np.flatnonzero(~(made & read))
        if len(dead) == group.size:
            dead = dead[1:]
        if len(dead):
            found[group.name] = dead.tolist()
    return found


def _some_nonzero(places: list[Place], parameters: dict[str, nn.Parameter], size: int) -> Mask:
    """Whether any of the parameters of each unit is not zero: (size,). Without any, who knows."""
    found = np.full(size, not places)
    for place in places:
        found |= per_unit(place, (parameters[place[0]].detach() != 0).double()) > 0
    return found


def _silent_inputs(model: nn.Module, graph: ChannelGraph) -> dict[str, Mask]:
    """For the layers that read prunable groups, the inputs that are zero throughout."""
    roles = find_roles(model)
    weights = {tensor for group in graph.prunable for tensor, _, _ in roles.readers(group)}
    silent: dict[str, Mask] = {}

    def watch(name: str, layer: nn.Linear | _ConvNd, x: Tensor) -> None:
        if isinstance(layer, _ConvNd):
            x = x.movedim(-1 - len(layer.kernel_size), -1)
        loud = (x != 0).reshape(-1, x.shape[-1]).any(dim=0)  # (channels,)
        zero = ~loud.view(-1, layer.weight.shape[1]).any(dim=0).cpu().numpy()
        silent[name] = silent.get(name, True) & zero

    show_inputs(model, _probes(graph.arguments), weights, watch)
    return silent


def _probes(arguments: Arguments) -> list[Arguments]:
    """The example inputs; noise as well in place of those that are constant and show nothing."""
    noise = torch.Generator().manual_seed(0)

    def constant(tensor: Tensor) -> bool:
        return tensor.is_floating_point() and not bool((tensor != tensor.flatten()[:1]).any())

    def shaken(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, generator=noise).to(tensor) if constant(tensor) else tensor

    if not any(map(constant, tensors_in(arguments))):
        return [arguments]
    return [arguments, tree_map_only(Tensor, shaken, arguments)]


def check_unchanged(model: nn.Module, slim: nn.Module, arguments: Arguments) -> None:
    """Refuse a cut model that does not compute what the given one computes.

    Both run in evaluation mode and double precision, as copies.
    """
    twins = [in_double(one) for one in (model, slim)]
    apart = max(
        difference(*(outputs(twin, probe, whole=True) for twin in twins))
        for probe in _probes(arguments)
    )
    if not apart <= TOLERANCE:
        raise VerificationError(
            f"Without its zero units the model's outputs differ by {apart:.1e} of the largest; "
            f"{TOLERANCE:.0e} is allowed. Its code depends on channels that are zero: a norm over "
            'channels, for instance. Use mode="ratio" for this model.'
        )
