"""Which parameters make the channels of a group, and which read them.

A layer reads a group if the group lies on the dimension over which the layer's weight is summed.
Every other parameter of the group (filters, biases, norms, depthwise kernels) makes its channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from rsprune.layers import contracted_dim
from rsprune.structure.groups import ChannelGroup
from rsprune.structure.layout import Labels

Place = tuple[str, int, Labels]  # tensor, dim, positions (units, count)


@dataclass(frozen=True)
class Roles:
    """For every parameter by name, the dimensions that are read and those that are made.

    A parameter that several modules share may be both along one dimension.
    """

    reads: Mapping[str, frozenset[int]]
    makes: Mapping[str, frozenset[int]]

    def readers(self, group: ChannelGroup) -> list[Place]:
        """Where layers read the group."""
        return [place for place in group.places if place[1] in self.reads.get(place[0], ())]

    def makers(self, group: ChannelGroup) -> list[Place]:
        """Where parameters make the group's channels."""
        return [place for place in group.places if place[1] in self.makes.get(place[0], ())]


def find_roles(model: nn.Module) -> Roles:
    """The roles of all parameters of ``model``."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    reads: dict[str, set[int]] = {name: set() for name in names.values()}
    makes: dict[str, set[int]] = {name: set() for name in names.values()}
    for module in model.modules():
        for own, parameter in module._parameters.items():
            if parameter is None:
                continue
            name, read = names[parameter], contracted_dim(module, own)
            if read is not None:
                reads[name].add(read)
            makes[name].update(d for d in range(parameter.dim()) if d != read)
    return Roles(
        {name: frozenset(dims) for name, dims in reads.items()},
        {name: frozenset(dims) for name, dims in makes.items()},
    )
