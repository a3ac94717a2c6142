"""ThiNet: keep the units that keep what the next layers compute (Luo et al. 2017, section 3).

A layer that reads a group computes sums over the group's units. At sampled outputs, unit u
contributes x_u; G = sum x x^T over the samples. Dropping the set T changes these outputs by
1_T^T G 1_T in squares: T is chosen greedily. Then the kept units S of every reader are scaled by
least squares, (G_SS + ridge) (a - 1) = G_ST 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from rsprune.compression.activations import show_inputs
from rsprune.compression.roles import find_roles
from rsprune.compression.select import dropped, magnitude
from rsprune.shadow import Arguments
from rsprune.structure.groups import ChannelGraph
from rsprune.structure.layout import Labels

Matrix = npt.NDArray[np.float64]
_SAMPLES = 1024  # of every reader and batch; more for wide groups
_CHUNK = 1 << 22  # elements that are worked on at a time
_RIDGE = 1e-3  # of the mean of the diagonal


@dataclass
class Grams:
    """For every group, by reader: how the units' contributions go together."""

    places: Mapping[str, list[tuple[str, Labels]]]  # by weight: group, positions
    seed: int = 0
    by_group: dict[str, dict[str, Matrix]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)

    def watch(self, name: str, layer: nn.Linear | _ConvNd, x: Tensor) -> None:
        """Add samples of what ``layer`` computes from ``x``."""
        own = self.places[name]
        if not x.numel():
            return
        left = max(_SAMPLES, *(2 * len(positions) for _, positions in own))
        size = max(1, _CHUNK // layer.weight[0].numel())
        while left > 0:
            parts = contributions(layer, x, min(size, left), self._generator).cpu().numpy()
            left -= size
            for group, positions in own:
                units = parts[:, positions].sum(axis=2)  # (samples, units)
                grams = self.by_group.setdefault(group, {})
                grams[name] = grams.get(name, 0.0) + units.T @ units


def contributions(
    layer: nn.Linear | _ConvNd, x: Tensor, count: int, generator: torch.Generator
) -> Tensor:
    """What the inputs of ``layer`` add to ``count`` sampled outputs: (count, weight.shape[1])."""

    def draw(high: int) -> Tensor:
        return torch.randint(high, (count,), generator=generator).to(x.device)

    filters = draw(layer.weight.shape[0])
    weight = layer.weight.detach()[filters].double()  # (count, C, *kernel)
    if not isinstance(layer, _ConvNd):
        rows = x.reshape(-1, x.shape[-1])
        return rows[draw(len(rows))].double() * weight
    space = len(layer.kernel_size)
    x = x if x.dim() == space + 2 else x[None]
    x = F.pad(
        x,
        layer._reversed_padding_repeated_twice,
        "constant" if layer.padding_mode == "zeros" else layer.padding_mode,
    )
    channels = weight.shape[1]
    first = filters // (layer.out_channels // layer.groups) * channels
    index = [draw(len(x)), first[:, None] + torch.arange(channels, device=x.device)]
    for d in range(space):
        reach = layer.dilation[d] * (layer.kernel_size[d] - 1)
        start = draw((x.shape[d + 2] - reach - 1) // layer.stride[d] + 1) * layer.stride[d]
        offsets = layer.dilation[d] * torch.arange(layer.kernel_size[d], device=x.device)
        index.append(start[:, None] + offsets)
    patches = x[_outer(index)].double()  # (count, C, *kernel)
    return (patches * weight).flatten(2).sum(2)


def _outer(index: list[Tensor]) -> tuple[Tensor, ...]:
    """Indices (count,), (count, C), (count, k), ... that broadcast to (count, C, k, ...)."""
    rank = len(index)
    found = [index[0].view(-1, *[1] * (rank - 1))]
    for d, own in enumerate(index[1:], start=1):
        found.append(own.view(len(own), *[-1 if e == d else 1 for e in range(1, rank)]))
    return tuple(found)


def greedy(gram: Matrix, count: int) -> list[int]:
    """``count`` units whose joint contribution is small: each time the one that adds least."""
    alone, together = gram.diagonal(), np.zeros(len(gram))
    gone = np.zeros(len(gram), dtype=bool)
    for _ in range(count):
        unit = int(np.where(gone, np.inf, alone + 2 * together).argmin())
        gone[unit] = True
        together += gram[unit]
    return [int(unit) for unit in np.flatnonzero(gone)]


def least_squares(gram: Matrix, gone: list[int]) -> Matrix:
    """The factor for every unit with which the kept ones stand in best for those gone."""
    scale = np.ones(len(gram))
    kept = np.setdiff1d(np.arange(len(gram)), gone)
    own = gram[np.ix_(kept, kept)]
    ridge = _RIDGE * own.diagonal().mean()
    if ridge > 0:
        missing = gram[kept][:, gone].sum(axis=1)
        scale[kept] += np.linalg.solve(own + ridge * np.eye(len(kept)), missing)
    return scale


Scales = dict[str, list[tuple[str, int, Matrix]]]  # by group: weight, dim, factor by index


def drop_by_thinet(
    model: nn.Module,
    graph: ChannelGraph,
    widths: Mapping[str, int],
    runs: Iterable[Arguments],
) -> tuple[dict[str, list[int]], Scales]:
    """The units to drop, and the factors for the weights that read the others.

    Groups that no convolution or linear layer reads are chosen by magnitude.
    """
    roles, parameters = find_roles(model), dict(model.named_parameters())
    shrinking = [group for group in graph.prunable if widths[group.name] < group.size]
    places: dict[str, list[tuple[str, Labels]]] = {}
    for group in shrinking:
        for tensor, dim, positions in roles.readers(group):
            # a weight that also makes channels along this dimension must not be rescaled
            if dim == 1 and dim not in roles.makes[tensor]:
                places.setdefault(tensor, []).append((group.name, positions))
    grams = Grams(places)
    show_inputs(model, runs, places, grams.watch)
    drop: dict[str, list[int]] = {}
    scales: Scales = {}
    for group in shrinking:
        count = group.size - widths[group.name]
        own = {
            name: gram / gram.trace()
            for name, gram in grams.by_group.get(group.name, {}).items()
            if gram.trace() > 0
        }
        if not own:
            drop[group.name] = dropped(magnitude(group, parameters), count)
            continue
        drop[group.name] = greedy(np.sum(list(own.values()), axis=0), count)
        for tensor, dim, positions in roles.readers(group):
            if dim == 1 and tensor in own:
                factor = np.ones(parameters[tensor].shape[dim])
                factor[positions] = least_squares(own[tensor], drop[group.name])[:, None]
                scales.setdefault(group.name, []).append((tensor, dim, factor))
    return drop, scales


@torch.no_grad()
def rescale(model: nn.Module, kept: Mapping[str, Mapping[int, Tensor]], scales: Scales) -> None:
    """Multiply the weights of the cut ``model``, in place."""
    parameters: dict[str, Any] = dict(model.named_parameters())
    for own in scales.values():
        for tensor, dim, factor in own:
            weight = parameters[tensor]
            left = torch.from_numpy(factor)[kept[tensor][dim]].to(weight)
            weight.mul_(left.view([-1 if d == dim else 1 for d in range(weight.dim())]))
