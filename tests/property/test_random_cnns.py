"""Random convolutional networks are pruned exactly.

A recipe is a list of steps; each adds one operator or block to a network whose state is a list of
feature maps. RSPRUNE_NIGHTLY=1 grows thousands of networks instead of hundreds.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from hypothesis import given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import rsprune
from tests.surgery import (
    TOLERANCE,
    difference,
    evaluate,
    expected_shapes,
    randomise,
    tensors_of,
    train_once,
    uneven_drop,
    zeroed,
)

EXAMPLES = 5000 if os.environ.get("RSPRUNE_NIGHTLY") else 200
SIDE = 8


class Step(NamedTuple):
    """One step of a recipe: what to add, and numbers that it may use as it likes."""

    kind: str
    width: int
    pick: int


class Grown(nn.Module):
    """The network of a recipe; it keeps every feature map, for later steps to come back to."""

    def __init__(self, recipe: list[Step]) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        self.plan: list[tuple[Callable[..., Tensor], tuple[int, ...]]] = []
        self.widths: list[int] = []
        self.add(lambda m, x: m(x), (), 4, nn.Conv2d(3, 4, 3, padding=1))
        for step in recipe:
            STEPS[step.kind](self, step)
        self.head = self.make_head(recipe[0].pick)

    def add(
        self, run: Callable[..., Tensor], sources: tuple[int, ...], width: int, layer: nn.Module
    ) -> None:
        """Plan ``run(layer, *maps)``, which makes a feature map of ``width`` channels."""
        self.layers.append(layer)
        self.plan.append((run, sources))
        self.widths.append(width)

    def pick(self, number: int) -> int:
        """One of the last three feature maps."""
        return len(self.widths) - 1 - number % min(3, len(self.widths))

    def make_head(self, number: int) -> nn.Module:
        width = self.widths[-1]
        if number % 2:
            return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 4))
        return nn.Sequential(nn.MaxPool2d(4), nn.Flatten(), nn.Linear(width * 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.layers[0](x)]
        for layer, (run, sources) in zip(self.layers[1:], self.plan[1:], strict=True):
            maps.append(run(layer, *(maps[i] for i in sources)))
        return self.head(maps[-1])


def simple(net: Grown, source: int, width: int, layer: nn.Module) -> None:
    net.add(lambda m, x: m(x), (source,), width, layer)


def conv(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    kernel = 1 + 2 * (step.pick % 2)
    layer = nn.Conv2d(net.widths[source], step.width, kernel, padding=kernel // 2)
    simple(net, source, step.width, layer)


def grouped(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    width = net.widths[source]
    groups = max(g for g in (1, 2, 3, 4) if width % g == 0 and (g == 1 or step.pick % g == 0))
    out = groups * max(2, step.width // groups)
    simple(net, source, out, nn.Conv2d(width, out, 3, padding=1, groups=groups))


def depthwise(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    width, multiplier = net.widths[source], 1 + step.pick % 2
    layer = nn.Conv2d(width, width * multiplier, 3, padding=1, groups=width)
    simple(net, source, width * multiplier, layer)


def transposed(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    width = net.widths[source]
    groups = 2 if width % 2 == 0 and step.pick % 2 else 1
    out = groups * max(2, step.width // groups)
    layer = nn.ConvTranspose2d(width, out, 3, padding=1, groups=groups)
    simple(net, source, out, layer)


def norm(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    width = net.widths[source]
    kinds = (nn.BatchNorm2d(width), nn.InstanceNorm2d(width, affine=True), nn.PReLU(width))
    simple(net, source, width, kinds[step.width % 3])


def activation(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    kinds = (nn.ReLU(), nn.SiLU(), nn.Sigmoid(), nn.Hardswish(), nn.Dropout(0.1), nn.Softplus())
    simple(net, source, net.widths[source], kinds[step.width % len(kinds)])


def pool(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    kinds = (nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1))
    simple(net, source, net.widths[source], kinds[step.width % 2])


def resize(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    mode = ("nearest", "bilinear")[step.width % 2]
    net.add(
        lambda _, x: F.interpolate(F.avg_pool2d(x, 2), scale_factor=2, mode=mode),
        (source,), net.widths[source], nn.Identity(),
    )  # fmt: skip


def residual(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    width = net.widths[source]
    branch = nn.Sequential(
        nn.Conv2d(width, step.width, 3, padding=1), nn.BatchNorm2d(step.width), nn.ReLU(),
        nn.Conv2d(step.width, width, 1),
    )  # fmt: skip
    net.add(lambda m, x: x + m(x), (source,), width, branch)


def add(net: Grown, step: Step) -> None:
    """Add two feature maps, the second one projected where widths differ."""
    a, b = net.pick(step.pick), net.pick(step.width)
    same = net.widths[a] == net.widths[b]
    layer = nn.Identity() if same else nn.Conv2d(net.widths[b], net.widths[a], 1)
    net.add(lambda m, x, y: x + m(y), (a, b), net.widths[a], layer)


def multiply(net: Grown, step: Step) -> None:
    a, b = net.pick(step.pick), net.pick(step.width)
    layer = nn.Conv2d(net.widths[b], net.widths[a], 1)
    net.add(lambda m, x, y: x * m(y).sigmoid(), (a, b), net.widths[a], layer)


def cat(net: Grown, step: Step) -> None:
    """Concatenate; a convolution keeps the width in bounds."""
    a, b = net.pick(step.pick), net.pick(step.width)
    width = net.widths[a] + net.widths[b]
    if width <= 16:
        net.add(lambda _, x, y: torch.cat([x, y], 1), (a, b), width, nn.Identity())
    else:
        layer = nn.Conv2d(width, step.width, 1)
        net.add(lambda m, x, y: m(torch.cat([x, y], 1)), (a, b), step.width, layer)


def shuffle(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    width = net.widths[source]
    groups = next(g for g in (2 + step.width % 2, 2, 3, 1) if g == 1 or width in (2 * g, 4 * g))

    def by_hand(_: nn.Module, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return x.view(b, groups, c // groups, h, w).transpose(1, 2).reshape(b, c, h, w)

    if step.pick % 2:
        simple(net, source, width, nn.ChannelShuffle(groups))
    else:
        net.add(by_hand, (source,), width, nn.Identity())


def squeeze(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    width = net.widths[source]
    gate = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, step.width, 1), nn.ReLU(),
        nn.Conv2d(step.width, width, 1), nn.Sigmoid(),
    )  # fmt: skip
    net.add(lambda m, x: x * m(x), (source,), width, gate)


def halves(net: Grown, step: Step) -> None:
    """Split in two, convolve one half, and put both together again, perhaps exchanged."""
    source = net.pick(step.pick)
    width = net.widths[source]
    if width % 2 or width == 2:
        return conv(net, step)

    def run(m: nn.Module, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return torch.cat([m(b), a] if step.width % 2 else [a, m(b)], 1)

    net.add(run, (source,), width, nn.Conv2d(width // 2, width // 2, 3, padding=1))
    return None


def gate(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    layer = nn.Conv2d(net.widths[source], 2 * step.width, 1)
    net.add(lambda m, x: F.glu(m(x), 1), (source,), step.width, layer)


def space_to_depth(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    layer = nn.Conv2d(4 * net.widths[source], 4 * step.width, 1)
    by_slices = step.pick % 2

    def run(m: nn.Module, x: Tensor) -> Tensor:
        parts = [x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)]
        low = torch.cat(parts, 1) if by_slices else F.pixel_unshuffle(x, 2)
        return F.pixel_shuffle(m(low), 2)

    net.add(run, (source,), step.width, layer)


def both_signs(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    width = net.widths[source]
    layer = nn.Conv2d(2 * width, step.width, 1)
    net.add(lambda m, x: m(torch.cat([x, -x], 1).relu()), (source,), step.width, layer)


def tokens(net: Grown, step: Step) -> None:
    """A linear layer on pixels."""
    source = net.pick(step.pick)
    layer = nn.Linear(net.widths[source], step.width)
    net.add(
        lambda m, x: m(x.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(2, (SIDE, SIDE)),
        (source,), step.width, layer,
    )  # fmt: skip


def shared(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    width = net.widths[source]
    layer = nn.Conv2d(width, width, 3, padding=1)
    net.add(lambda m, x: m(m(x).relu()), (source,), width, layer)


def context(net: Grown, step: Step) -> None:
    """A global feature, broadcast over space and concatenated."""
    source = net.pick(step.pick)
    width = net.widths[source]
    layer = nn.Conv2d(2 * width, step.width, 1)
    net.add(
        lambda m, x: m(torch.cat([x, x.mean((2, 3), keepdim=True).expand_as(x)], 1)),
        (source,), step.width, layer,
    )  # fmt: skip


def maxout(net: Grown, step: Step) -> None:
    source = net.pick(step.pick)
    layer = nn.Conv2d(net.widths[source], 2 * step.width, 1)
    net.add(lambda m, x: m(x).unflatten(1, (-1, 2)).amax(2), (source,), step.width, layer)


def padded(net: Grown, step: Step) -> None:
    """Channels of zeros behind the others, as in ResNet's shortcuts without parameters."""
    source = net.pick(step.pick)
    width = net.widths[source]
    layer = nn.Conv2d(width, width + 2, 3, padding=1)
    net.add(lambda m, x: m(x) + F.pad(x, (0, 0, 0, 0, 0, 2)), (source,), width + 2, layer)


STEPS: dict[str, Callable[[Grown, Step], None]] = {
    step.__name__: step
    for step in (
        conv, grouped, depthwise, transposed, norm, activation, pool, resize, residual, add,
        multiply, cat, shuffle, squeeze, halves, gate, space_to_depth, both_signs, tokens, shared,
        context, maxout, padded,
    )
}  # fmt: skip
MAX_STEPS = 8
steps = st.builds(
    Step, st.sampled_from(sorted(STEPS)), st.integers(2, 8), st.integers(0, 11)
)  # fmt: skip
recipes = st.lists(steps, min_size=1, max_size=MAX_STEPS)


@settings(max_examples=EXAMPLES)
@given(recipes, st.integers(0, 2**16))
def test_random_networks_are_pruned_exactly(recipe: list[Step], seed: int) -> None:
    """Any drop gives what the zeroed network gives; and there always is something to drop."""
    last = Step("conv", 6, 1)  # between a network that froze and the frozen outputs
    model = randomise(Grown([*recipe, last]), seed)
    x = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed)).double()
    with warnings.catch_warnings():
        # padded channels are a literal width
        warnings.simplefilter("ignore", rsprune.RsPruneWarning)
        graph = rsprune.trace(model, x)
    note(str(graph))
    drop = uneven_drop(graph, seed)
    assert any(group.prunable for group in graph.groups)
    slim = rsprune.prune(model, graph, drop=drop)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors_of(slim).items()}
    assert shapes == expected_shapes(model, graph, drop)
    gap = difference(evaluate(slim, x), evaluate(zeroed(model, graph, drop), x))
    assert gap <= TOLERANCE
    train_once(slim, x)


@settings(max_examples=EXAMPLES // 2)
@given(recipes)
def test_what_no_rule_forbids_is_prunable(recipe: list[Step]) -> None:
    """Without literal widths, nothing but the inputs and outputs of the network is frozen."""
    plain = [step for step in recipe if step.kind != "padded"]
    graph = rsprune.trace(Grown([*plain, Step("conv", 6, 1)]), torch.zeros(2, 3, SIDE, SIDE))
    note(str(graph))
    # of a depthwise transposed convolution, whole channels go, not one output of each
    allowed = ("has one unit only", "every channel has its own outputs")
    assert all(
        group.prunable or group.reason.endswith(allowed)
        for group in graph.groups
        if not outer(group.slots)
    )


def outer(slots: tuple[tuple[str, int, object], ...]) -> bool:
    """Whether a group is that of the input channels or of the scores."""
    names = {(tensor, dim) for tensor, dim, _ in slots}
    return ("layers.0.weight", 1) in names or ("head.2.weight", 0) in names
