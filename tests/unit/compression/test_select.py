"""Which units survive: by norm, by non-zeros, by lot, by what the next layers compute."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rsprune
from rsprune.compression import compress_with_plan
from rsprune.compression.select import (
    drop_at_random,
    drop_by_magnitude,
    drop_by_nonzeros,
    dropped,
    lots,
)
from rsprune.compression.thinet import contributions, drop_by_thinet, greedy, least_squares
from rsprune.data import load_digits
from rsprune.models import CifarResNet, SmallCNN
from tests.unit.compression.networks import IMAGE, Chain, Tied, sparsify

WIDTHS = {"a": 7, "b": 6, "c": 8}


@torch.no_grad()
def faint(model: Chain, units: list[int], factor: float) -> Chain:
    """Make some units of the first group small, in the filters and where they are read."""
    model.a.weight[units] *= factor
    model.a.bias[units] *= factor
    model.b.weight[:, units] *= factor
    return model


def test_magnitude_drops_the_smallest() -> None:
    model = faint(Chain(), [2, 5, 9], 0.01)
    drop = drop_by_magnitude(model, rsprune.trace(model, IMAGE), WIDTHS)
    assert drop == {"a": [2, 5, 9]}


def test_no_tensor_dominates_the_norm() -> None:
    """A weight that is a million times larger than the others has one vote, as they have."""
    model = faint(Chain(), [2, 5, 9], 0.01)
    with torch.no_grad():
        model.b.weight *= 1e6
        model.b.weight[:, [0, 1, 3]] *= 0.9
    drop = drop_by_magnitude(model, rsprune.trace(model, IMAGE), WIDTHS)
    assert drop == {"a": [2, 5, 9]}


def test_a_shift_saves_no_unit() -> None:
    """A large bias on faint weights is no reason to stay."""
    model = faint(Chain(), [2, 5, 9], 0.01)
    with torch.no_grad():
        model.a.bias[[2, 5, 9]] = 100.0
    drop = drop_by_magnitude(model, rsprune.trace(model, IMAGE), WIDTHS)
    assert drop == {"a": [2, 5, 9]}


def test_nonzeros_are_counted_before_size() -> None:
    """A unit with many small weights survives one with few large ones; ties go by magnitude."""
    torch.manual_seed(0)
    model = faint(Chain(), [4], 1e-6)
    with torch.no_grad():
        model.a.weight[7, 1:] = 0
        model.a.weight[8, 1:] = 0
        model.a.weight[8, :1] *= 100
    graph = rsprune.trace(model, IMAGE)
    assert drop_by_nonzeros(model, graph, WIDTHS | {"a": 9}) == {"a": [7]}
    assert drop_by_nonzeros(model, graph, WIDTHS | {"a": 8}) == {"a": [7, 8]}
    assert drop_by_nonzeros(model, graph, WIDTHS | {"a": 7}) == {"a": [4, 7, 8]}
    assert drop_by_magnitude(model, graph, WIDTHS | {"a": 9}) == {"a": [4]}


def test_lots_are_always_the_same_and_heed_no_weights() -> None:
    """Another network of the same groups loses the same units, whatever the random state."""
    drops = []
    for seed in range(2):
        torch.manual_seed(seed)
        model = faint(Chain(3), [seed], 0.0)
        graph = rsprune.trace(model, IMAGE)
        drops.append(drop_at_random(model, graph, {"a": 15, "b": 9, "c": 24}))
    assert drops[0] == drops[1]
    assert {name: len(units) for name, units in drops[0].items()} == {"a": 15, "b": 9}
    assert not np.intersect1d(lots(graph["a"]), lots(graph["b"])).size  # each group has its own


def test_ties_are_broken_by_number() -> None:
    """Of equal units those with the lowest numbers stay."""
    assert dropped(np.ones(5), 2) == [3, 4]
    assert dropped(np.array([1.0, 0.0, 1.0, 0.0, 0.0]), 2, first=np.zeros(5)) == [3, 4]


def test_coupled_parameters_all_have_a_say() -> None:
    """In a residual network the shared channels are judged over all blocks."""
    model = CifarResNet(8)
    with torch.no_grad():
        model.conv1.weight[3] = 0  # small at one place only
        for name, weight in model.named_parameters():
            if name.startswith("layer1.0.conv2") or name == "conv1.weight":
                weight[7] *= 0.1
            elif name == "layer1.0.conv1.weight":
                weight[:, 7] *= 0.1
    graph = rsprune.trace(model, IMAGE)
    widths = {group.name: group.size for group in graph.prunable} | {"conv1": 15}
    assert drop_by_magnitude(model, graph, widths) == {"conv1": [7]}


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain": (lambda: nn.Conv2d(6, 4, 3), (2, 6, 9, 8)),
    "stride and padding": (lambda: nn.Conv2d(6, 4, 3, stride=2, padding=1), (2, 6, 9, 8)),
    "dilation": (lambda: nn.Conv2d(6, 4, (3, 2), dilation=(2, 3), padding=2), (2, 6, 9, 8)),
    "groups": (lambda: nn.Conv2d(6, 4, 3, groups=2), (2, 6, 9, 8)),
    "same": (lambda: nn.Conv2d(6, 4, 4, padding="same"), (2, 6, 9, 8)),
    "reflect": (lambda: nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"), (2, 6, 9, 8)),
    "unbatched": (lambda: nn.Conv2d(6, 4, 3), (6, 9, 8)),
    "one dimension": (lambda: nn.Conv1d(6, 4, 3, padding=1), (2, 6, 9)),
    "three dimensions": (lambda: nn.Conv3d(6, 4, 2, stride=2), (2, 6, 4, 5, 6)),
    "linear": (lambda: nn.Linear(6, 4), (2, 6)),
    "linear over tokens": (lambda: nn.Linear(6, 4), (2, 5, 6)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", LAYERS)
def test_contributions_add_up_to_outputs(name: str) -> None:
    """What the inputs contribute to a sampled output sums to an output of the layer."""
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layer, x = make().double(), torch.randn(shape).double()
    parts = contributions(layer, x, 60, torch.Generator().manual_seed(1))  # type: ignore[arg-type]
    assert parts.shape == (60, layer.weight.shape[1])
    with torch.no_grad():
        layer.bias.zero_()  # type: ignore[union-attr,operator]
        outputs = layer(x).flatten()
    nearest = (parts.sum(1)[:, None] - outputs).abs().amin(1)
    assert nearest.max() < 1e-12
    assert parts.sum(1).unique().numel() > 5


def test_greedy_finds_what_cancels() -> None:
    """Two large contributions that cancel are worth less than one small one."""
    samples = np.random.default_rng(0).normal(size=(200, 5))
    samples[:, 3] = -samples[:, 1] + 1e-3 * samples[:, 3]
    samples[:, [0, 2, 4]] *= 1.5
    gram = samples.T @ samples
    assert greedy(gram, 2) == [1, 3]


def test_greedy_is_among_the_best_choices() -> None:
    """On small problems: of all subsets, nine in ten are worse, on average."""
    generator = np.random.default_rng(0)
    ranks = []
    for _ in range(30):
        samples = generator.normal(size=(30, 8)) @ generator.normal(size=(8, 8))
        gram = samples.T @ samples
        costs = {s: gram[np.ix_(s, s)].sum() for s in itertools.combinations(range(8), 3)}
        own = costs[tuple(greedy(gram, 3))]
        ranks.append(np.mean([cost < own for cost in costs.values()]))
    assert np.mean(ranks) < 0.1


def test_least_squares_restores_a_copy() -> None:
    """If a dropped unit is twice a kept one, that one is scaled by three."""
    samples = np.random.default_rng(0).normal(size=(500, 4))
    samples[:, 2] = 2 * samples[:, 0]
    scale = least_squares(samples.T @ samples, [2])
    assert scale == pytest.approx([3, 1, 1, 1], abs=2e-2)
    assert least_squares(np.zeros((3, 3)), [1]).tolist() == [1, 1, 1]


BATCHES = list(load_digits().train.in_order(64))


def reconstruction_error(model: nn.Module, slim: nn.Module, reader: str, x: Tensor) -> float:
    """How far off a layer's output is after its input was cut, relative to its size."""
    found = []
    for network in (model, slim):
        layer = network.get_submodule(reader)
        handle = layer.register_forward_hook(lambda _m, _a, out: found.append(out.detach()))
        network.eval()(x)
        handle.remove()
    return float((found[0] - found[1]).norm() / found[0].norm())


@pytest.mark.parametrize(("group", "reader"), [("conv2", "conv3"), ("conv3", "fc1")])
def test_thinet_beats_random_selection(group: str, reader: str) -> None:
    """In what the next layer computes on unseen data, without rescaling and more so with it.

    The layers are a convolution with padding and a linear layer, which reads four positions of
    every unit.
    """
    held_out = torch.cat([x for x, _ in BATCHES[20:]])
    for seed in range(4):
        torch.manual_seed(seed)
        model = SmallCNN().train()
        for x, _ in BATCHES[:3]:
            model(x)  # batch norm gets its statistics
        model.eval()
        graph = rsprune.trace(model, held_out[:1])
        widths = {g.name: g.size for g in graph.prunable} | {group: 24}
        runs = [((x,), {}) for x, _ in BATCHES[:6]]
        drop, _ = drop_by_thinet(model, graph, widths, runs)
        plain = rsprune.prune(model, graph, drop)
        error = reconstruction_error(model, plain, reader, held_out)
        by_chance = []
        for _ in range(5):
            random = {group: torch.randperm(64)[:40].tolist()}
            other = rsprune.prune(model, graph, random)
            by_chance.append(reconstruction_error(model, other, reader, held_out))
        assert list(drop) == [group]
        assert len(drop[group]) == 40
        assert error < 0.8 * min(by_chance), (seed, error, by_chance)


def test_rescaling_lowers_the_error_further() -> None:
    """The same units with and without least squares, on unseen data."""
    held_out = torch.cat([x for x, _ in BATCHES[20:]])
    for seed in range(4):
        torch.manual_seed(seed)
        model = SmallCNN().train()
        for x, _ in BATCHES[:3]:
            model(x)
        model.eval()
        # only conv2's channels shrink: nothing else has zeros
        with torch.no_grad():
            flat = model.conv3.weight.view(-1)
            flat[torch.randperm(flat.numel())[: flat.numel() // 2]] = 0
        made = compress_with_plan(model, held_out[:1], select="thinet", batches=BATCHES[:6])
        assert {name: len(units) for name, units in made.drop.items()} == {"conv2": 32}
        plain = rsprune.prune(model, rsprune.trace(model, held_out[:1]), made.drop)
        scaled, unscaled = (
            reconstruction_error(model, slim, "conv3", held_out) for slim in (made.model, plain)
        )
        assert scaled < 0.98 * unscaled


def test_thinet_leaves_the_model_as_it_was_and_repeats() -> None:
    """Mode, statistics, random state and weights; the same choice every time."""
    model = SmallCNN().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    runs = [((x,), {}) for x, _ in BATCHES[:2]]
    graph = rsprune.trace(model, BATCHES[0][0])
    widths = {group.name: group.size // 2 for group in graph.prunable}
    (first, scales), (second, again) = (
        drop_by_thinet(model, graph, widths, runs) for _ in range(2)
    )
    assert first == second
    for name in scales:
        for one, other in zip(scales[name], again[name], strict=True):
            assert (one[2] == other[2]).all()
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())


class Gated(nn.Module):
    """A group that only a transposed convolution reads, and one that two layers read jointly."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.left = nn.Conv2d(8, 6, 3, padding=1)
        self.both = nn.Conv2d(14, 6, 1)
        self.up = nn.ConvTranspose2d(6, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = torch.cat([x, self.left(x).relu()], 1)
        out: Tensor = self.up(self.both(x).relu())
        return out


def test_thinet_on_joined_groups_and_without_a_usable_reader() -> None:
    """Concatenated groups have their own columns; a transposed reader leaves it to magnitude."""
    model = Gated()
    sparsify(model, 0.5)
    made = compress_with_plan(model, IMAGE, select="thinet", unit="layer")
    assert made.model(IMAGE).shape == model(IMAGE).shape
    graph = rsprune.trace(model, IMAGE)
    by_size = drop_by_magnitude(model, graph, made.plan.widths)
    assert made.drop["both"] == by_size["both"]


def test_thinet_does_not_rescale_a_weight_that_is_also_a_table() -> None:
    """An embedding shares the weight that reads its group: magnitude decides, nothing is scaled."""

    model, words = sparsify(Tied(), 0.5), torch.arange(6).view(2, 3)
    made = compress_with_plan(model, words, select="thinet")
    assert made.plan.widths == {"table.weight[1]": 4}
    kept = [unit for unit in range(8) if unit not in made.drop["table.weight[1]"]]
    assert torch.equal(made.model.table.weight, model.table.weight[:, kept])


@pytest.mark.parametrize("kind", ["tensors", "pairs", "lists", "loader", "dicts"])
def test_batches_in_all_forms(kind: str) -> None:
    """Inputs alone, (inputs, labels) as loaders give them, or keyword arguments: one result."""
    model = SmallCNN().eval()
    pairs = BATCHES[:2]
    forms = {
        "tensors": [x for x, _ in pairs],
        "pairs": pairs,
        "lists": [list(pair) for pair in pairs],
        "loader": iter(pairs),
        "dicts": [{"x": x} for x, _ in pairs],
    }
    options = {"select": "thinet", "target_macs": 0.5}
    made, expected = (
        compress_with_plan(model, pairs[0][0], batches=batches, **options)  # type: ignore[arg-type]
        for batches in (forms[kind], pairs)
    )
    assert made.drop == expected.drop
