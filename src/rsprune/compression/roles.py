"""Which parameters make the channels of a group, and which read them.

A layer reads a group if the group lies on the dimension over which the layer's weight is summed.
Every other parameter of the group (filters, biases, norms, depthwise kernels) makes its channels.
The parameters of modules that are not torch's own may do both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from rsprune.layers import contracted_dim
from rsprune.structure.groups import ChannelGroup
from rsprune.structure.layout import Labels

_KNOWN = (
    _ConvNd, nn.Linear, nn.MultiheadAttention, _NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm,
    nn.PReLU,
)  # fmt: skip
Place = tuple[str, int, Labels]  # tensor, dim, positions (units, count)


@dataclass(frozen=True)
class Roles:
    """For every parameter by name, the dimensions that are read and those that are made.

    A parameter that several modules share, or whose module is unknown, may be both at once.
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
            dims = range(parameter.dim())
            if isinstance(module, _KNOWN):
                reads[name].update(() if read is None else (read,))
                makes[name].update(d for d in dims if d != read)
            else:
                reads[name].update(dims)
                makes[name].update(dims)
    return Roles(
        {name: frozenset(dims) for name, dims in reads.items()},
        {name: frozenset(dims) for name, dims in makes.items()},
    )
