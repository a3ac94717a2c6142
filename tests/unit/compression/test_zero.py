"""zero-groups: exactly the units that are zero go, and the outputs stay what they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rsprune
from rsprune.compression import compress_with_plan, unit_slots
from rsprune.compression.zero import check_unchanged
from rsprune.data import load_digits
from rsprune.errors import InvalidParameterError, VerificationError
from rsprune.models import CifarResNet, SmallCNN
from rsprune.optim import HSPG
from tests.unit.compression.networks import IMAGE, Chain, outputs_in_double


class Residual(nn.Module):
    """One residual block between a stem and a head, for digits."""

    def __init__(self, width: int = 12, inner: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, inner, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.stem(x)).relu()
        x = x + self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        out: Tensor = self.head(x.relu().mean((2, 3)))
        return out


def train_by_groups(model: nn.Module, lam: float, epochs: int) -> None:
    """A short run of HSPG on the digits, with a falling step size."""
    train = load_digits().train
    graph = rsprune.trace(model, train.images[:2])
    optimizer = HSPG(
        model.parameters(), lr=0.05, lam=lam, momentum=0.9, prox_steps=2 * 23,
        groups=unit_slots(model, graph),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - epoch / epochs)
        for images, labels in train.batches(64, generator):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("make", "lam", "epochs", "accuracy"),
    [(lambda: SmallCNN(width=8), 2e-2, 6, 0.9), (Residual, 6e-2, 6, 0.5)],
    ids=["chain", "residual"],
)
def test_what_hspg_sets_to_zero_is_removed(
    make: Callable[[], nn.Module], lam: float, epochs: int, accuracy: float
) -> None:
    """After real training: units go, no output changes by more than 1e-5, accuracy stays."""
    torch.manual_seed(0)
    model, test = make(), load_digits().test
    train_by_groups(model, lam, epochs)
    made = compress_with_plan(model, test.images[:32], mode="zero-groups")
    assert sum(len(units) for units in made.drop.values()) > 3
    assert made.plan.macs < made.plan.full_macs
    before, after = (outputs_in_double(m, test.images) for m in (model, made.model))
    assert (before - after).abs().max() <= 1e-5 * before.abs().max()
    assert (after.argmax(1) == test.labels).double().mean() > accuracy
    left = rsprune.trace(made.model, test.images[:2])
    for group in left.prunable:  # nothing that HSPG zeroed is left behind
        assert group.size == made.plan.widths[group.name]
    assert not compress_with_plan(made.model, test.images[:2], mode="zero-groups").drop


@torch.no_grad()
def silence(model: nn.Module, names: list[str], units: list[int], dim: int = 0) -> None:
    parameters = dict(model.named_parameters())
    for name in names:
        parameters[name].index_fill_(dim, torch.tensor(units), 0)


def settled(model: nn.Module) -> nn.Module:
    """Batch norms with statistics and shifts that are not zero."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.2)
            nn.init.normal_(module.bias, 0, 0.3)
            nn.init.normal_(module.running_mean, 0, 0.3)  # type: ignore[arg-type]
    return model.eval()


def dropped(model: nn.Module, x: Tensor = IMAGE) -> dict[str, list[int]]:
    return dict(compress_with_plan(model, x, mode="zero-groups").drop)


FILTER = ["layer1.0.conv1.weight"]
NORM = ["layer1.0.bn1.weight", "layer1.0.bn1.bias"]


def test_filter_and_norm_zero() -> None:
    """A filter alone is not enough where the norm shifts it; with the norm it is."""
    model = settled(CifarResNet(8))
    silence(model, FILTER, [2, 5])
    assert dropped(model) == {}
    silence(model, NORM, [2])
    assert dropped(model) == {"layer1.0.conv1": [2]}


def test_what_nobody_reads_goes() -> None:
    """All columns of the readers are zero, whatever the filters are."""
    model = settled(CifarResNet(8))
    silence(model, ["layer1.0.conv2.weight"], [3, 4], dim=1)
    made = compress_with_plan(model, IMAGE, mode="zero-groups")
    assert made.drop == {"layer1.0.conv1": [3, 4]}
    group = {g.name: g for g in made.plan.groups}["layer1.0.conv1"]
    assert (group.size, group.width, group.counted) == (16, 14, (2, 16))
    assert made.plan.unit == "zero-groups"


def test_a_shared_channel_goes_when_all_its_makers_are_zero() -> None:
    """In a residual stream every block that adds to the channel must be silent."""
    model = settled(CifarResNet(8))
    graph = rsprune.trace(model, IMAGE)
    stream = graph["conv1"]
    makers = [
        (name, dim, positions[1])
        for name, dim, positions in stream.slots
        if name in dict(model.named_parameters()) and (dim == 0)
    ]
    assert len(makers) > 6
    with torch.no_grad():
        for name, dim, own in makers[:-1]:
            dict(model.named_parameters())[name].index_fill_(dim, torch.tensor(own), 0)
        assert dropped(model) == {}
        name, dim, own = makers[-1]
        dict(model.named_parameters())[name].index_fill_(dim, torch.tensor(own), 0)
    assert dropped(model) == {"conv1": [1]}


def test_one_unit_stays() -> None:
    """A group that is zero throughout keeps one unit, so that the model runs."""
    model = Chain()
    silence(model, ["a.weight", "a.bias"], list(range(10)))
    made = compress_with_plan(model, IMAGE, mode="zero-groups")
    assert made.plan.widths["a"] == 1
    assert torch.equal(made.model(IMAGE), model(IMAGE))


class Squashed(nn.Module):
    """Between two convolutions, something that makes a constant of zero."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.between = between
        self.b = nn.Conv2d(6, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.between(self.a(x)))
        return out


@pytest.mark.parametrize(
    ("between", "goes"),
    [
        (nn.ReLU(), True),
        (nn.Sigmoid(), False),
        (nn.Softplus(), False),
        (nn.BatchNorm2d(6, affine=False), False),
        (nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False), True),
        (nn.Sequential(nn.Tanh(), nn.MaxPool2d(2)), True),
    ],
    ids=["relu", "sigmoid", "softplus", "plain batch norm", "depthwise", "tanh and pool"],
)
def test_what_is_zero_must_stay_zero_on_its_way(between: nn.Module, goes: bool) -> None:
    """A zero filter whose channel becomes a constant is not dead: the next layer reads it."""
    model = Squashed(between).eval()
    if isinstance(between, nn.BatchNorm2d):
        nn.init.constant_(between.running_mean, 0.5)  # type: ignore[arg-type]
    silence(model, ["a.weight"], [1, 4])
    if isinstance(between, nn.Conv2d):
        assert dropped(model) == {}  # its kernel is one of the unit's parameters
        silence(model, ["between.weight"], [1, 4])
    assert dropped(model) == ({"a": [1, 4]} if goes else {})


def test_norms_over_channels_keep_their_units() -> None:
    """The statistics of fewer channels are others: such groups stay whole."""
    model = Squashed(nn.GroupNorm(1, 6)).eval()
    silence(model, ["a.weight", "between.weight", "between.bias"], [1])
    assert dropped(model) == {}


class Scaled(nn.Module):
    """A parameter of its own that multiplies channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 6, 3)
        self.gain = nn.Parameter(torch.rand(6, 1, 1) + 0.5)
        self.b = nn.Conv2d(6, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.a(x) * self.gain)
        return out


def test_parameters_of_unknown_modules_must_be_zero_too() -> None:
    """Nobody knows whether they make a channel or read it."""
    model = Scaled()
    silence(model, ["a.weight", "a.bias"], [0, 3])
    assert dropped(model) == {}
    silence(model, ["gain"], [3])
    assert dropped(model) == {"a": [3]}


def test_changed_outputs_are_refused() -> None:
    """The check itself: another model of the same shape does not pass."""
    arguments = rsprune.trace(Chain(), IMAGE).arguments
    with pytest.raises(VerificationError, match="differ by"):
        check_unchanged(Chain(), Chain(), arguments)


@pytest.mark.parametrize(
    "option",
    [
        {"epsilon": 0.2}, {"unit": "layer"}, {"round_to": 8}, {"target_macs": 0.5},
        {"target_params": 0.5}, {"select": "nonzeros"}, {"inherit": False},
    ],
    ids=str,
)  # fmt: skip
def test_options_of_the_ratio_mode_are_refused(option: dict[str, object]) -> None:
    with pytest.raises(InvalidParameterError, match=f"'{next(iter(option))}'.*zero-groups"):
        rsprune.compress(Chain(), IMAGE, mode="zero-groups", **option)  # type: ignore[arg-type]


def test_slots_are_the_parameters_that_make_a_unit() -> None:
    """Filter, bias and norm, along their own dimension; each index in one group only."""
    model = SmallCNN(width=4)
    slots = unit_slots(model, rsprune.trace(model, torch.randn(1, 1, 8, 8)))
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert len(slots) == 4 + 8 + 8 + 16
    assert [(names[p], dim, index) for p, dim, index in slots[1]] == [
        ("conv1.weight", 0, 1), ("bn1.weight", 0, 1), ("bn1.bias", 0, 1),
    ]  # fmt: skip
    assert [(names[p], dim, index) for p, dim, index in slots[-1]] == [
        ("fc1.weight", 0, 15), ("fc1.bias", 0, 15),
    ]  # fmt: skip
    every = [(names[p], dim, index) for group in slots for p, dim, index in group]
    assert len(set(every)) == len(every)


def test_frozen_parameters_are_in_no_group() -> None:
    """An optimizer cannot set them to zero, so their units stay."""
    model = SmallCNN(width=4)
    model.bn1.weight.requires_grad_(False)
    slots = unit_slots(model, rsprune.trace(model, torch.randn(1, 1, 8, 8)))
    assert all(parameter.requires_grad for group in slots for parameter, _, _ in group)


class Bypassed(nn.Module):
    """A convolution whose zero filters get something else added: they are not dead."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 1, bias=False), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.conv(x) + x.mean(1, keepdim=True))
        return out


def test_an_example_of_zeros_does_not_hide_what_data_would_show() -> None:
    model = Bypassed()
    with torch.no_grad():
        model.conv.weight[2:5] = 0
    slim = rsprune.compress(model, torch.zeros(1, 3, 4, 4), mode="zero-groups")
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(slim(x), model(x))


class Normed(nn.Module):
    """Channels that no layer reads any more, but a norm over them does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(F.normalize(self.conv(x)))
        return out


def test_a_refused_cut_leaves_the_optimizer_with_its_model() -> None:
    model = Normed()
    with torch.no_grad():
        model.head.weight[:, 2:5] = 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(VerificationError):
        rsprune.compress(model, torch.randn(1, 3, 4, 4), mode="zero-groups", optimizer=optimizer)
    assert optimizer.param_groups[0]["params"][0] is model.conv.weight
