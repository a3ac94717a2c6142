"""The width rule: exact integers, whose sparsity drives whom, rounding."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import rsprune
from rsprune.compression import Sparsity, WidthPlan, layer_sparsity, plan_widths
from rsprune.compression.widths import width_of
from rsprune.models import VGG16, CifarResNet, ResNet
from tests.unit.compression.networks import IMAGE, Chain, Dense, Tied, classifier, sparsify

# SPEC section 4: the zeros that the paper's row RSP implies, lower end, upper end of the interval.
INTERVALS = [
    (0.1406, 0.1563), (0.5156, 0.5313), (0.4922, 0.5), (0.5078, 0.5156), (0.5508, 0.5547),
    (0.7070, 0.7109), (0.8320, 0.8359), *[(0.8984, 1.0)] * 8,
]  # fmt: skip
RSP = [55, 31, 65, 63, 115, 75, 43, 52, 52, 52, 52, 52, 52, 52, 52]


def plan_of(model: nn.Module, x: Tensor = IMAGE, **options: object) -> WidthPlan:
    return plan_widths(model, rsprune.trace(model, x), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_the_papers_row_comes_out(where: float) -> None:
    """Weights whose zeros lie anywhere in the implied intervals give the widths of row RSP."""
    model = VGG16()
    names = list(layer_sparsity(model))
    zeros = {
        name: low + where * (high - low)
        for name, (low, high) in zip(names[1:], INTERVALS, strict=True)
    }
    plan = plan_of(sparsify(model, zeros), unit="auto", epsilon=0.1)
    assert list(plan.widths.values()) == RSP
    assert round(plan.full_macs / plan.macs, 2) == 7.18


@pytest.mark.parametrize(
    ("size", "zeros", "elements", "epsilon", "width"),
    [
        (10, 7, 10, "0.1", 3),  # ceil(10 * (1 - 0.7)) is 4 in floats
        (512, 1, 1, "0.1", 52),
        (10, 10, 10, "0.1", 1),
        (10, 10, 10, "0", 1),  # no width is 0
        (10, 0, 10, "0.1", 10),
        (100, 71, 100, "0.29", 29),
        (3, 1, 3, "0.1", 2),
        (64, 1, 64 * 576, "0.1", 64),
    ],
)
def test_exact_integers(size: int, zeros: int, elements: int, epsilon: str, width: int) -> None:
    """ceil(K max(1 - s, epsilon)), where floats would round to the wrong side."""
    assert width_of(size, Sparsity(zeros, elements), Fraction(epsilon)) == width


def test_ten_filters_and_seventy_percent_zeros_leave_three() -> None:
    """The same through the front door; epsilon is the decimal that was written."""
    model = sparsify(Chain(), {"b.weight": 0.7})
    assert plan_of(model, unit="layer").widths == {"a": 3, "b": 6, "c": 8}
    assert plan_of(model, unit="layer", epsilon=0.4).widths["a"] == 4


def test_zeros_are_counted_exactly() -> None:
    """Every layer's weight by name; biases and norms are not counted."""
    model = sparsify(Chain(), {"b.weight": 0.5, "head.weight": 1.0})
    found = layer_sparsity(model)
    assert found == {
        "a.weight": (0, 270), "b.weight": (270, 540), "c.weight": (0, 48), "head.weight": (40, 40),
    }  # fmt: skip
    assert found["b.weight"].ratio == 0.5
    assert layer_sparsity(nn.MultiheadAttention(4, 2)).keys() == {
        "in_proj_weight",
        "out_proj.weight",
    }


class Readers(nn.Module):
    """A stream that a convolution, a transposed and a linear layer read, after a depthwise one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.conv = nn.Conv2d(8, 4, 3)
        self.up = nn.ConvTranspose2d(8, 6, 2)
        self.linear = nn.Linear(8, 5)
        self.last = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.stem(x))
        pair = torch.cat([self.conv(x).mean((2, 3)), self.up(x).mean((2, 3))], 1)
        out: Tensor = self.linear(x.mean((2, 3))) + self.last(pair)
        return out


def test_all_readers_count_and_a_depthwise_convolution_is_none() -> None:
    """Zeros and sizes of all the layers that read a group are summed."""
    zeros = {"conv.weight": 0.5, "up.weight": 1.0, "depthwise.weight": 1.0}
    plan = plan_of(sparsify(Readers(), zeros), unit="layer")
    stem = plan.groups[0]
    conv, up, linear = 4 * 8 * 9, 8 * 6 * 4, 5 * 8
    assert stem.counted == (conv // 2 + up, conv + up + linear)
    assert stem.driver == "conv, up, linear"
    assert stem.width == -(-8 * (conv // 2 + linear) // (conv + up + linear))


def test_a_group_without_readers_stays_whole() -> None:
    class Products(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(3, 8)
            self.k = nn.Linear(3, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.q(x) @ self.k(x).transpose(1, 2)

    plan = plan_of(sparsify(Products(), 0.9), torch.randn(2, 5, 3), unit="layer")
    assert plan.widths == {"q": 8}
    assert plan.groups[0].driver == "no weight of a layer reads it"
    assert plan.groups[0].sparsity is None


def test_blocks_of_resnet50() -> None:
    """Inner widths shrink by the ratio of the whole block; what blocks share stays."""
    model = ResNet(50)
    zeros = {}
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}"
            zeros |= {f"{prefix}.conv{i}.weight": 0.1 * stage + 0.1 * i for i in (1, 2, 3)}
            zeros[f"{prefix}.downsample.0.weight"] = 0.9
    graph = rsprune.trace(sparsify(model, zeros), torch.randn(1, 3, 64, 64))
    plan = plan_widths(model, graph, unit="auto")
    counted = layer_sparsity(model)
    assert plan.unit == "block"
    assert len([group for group in plan.groups if group.width < group.size]) == 32
    for group in plan.groups:
        prefix, _, layer = group.name.rpartition(".")
        if layer in ("conv1", "conv2") and prefix:
            own = [count for name, count in counted.items() if name.startswith(f"{prefix}.")]
            zeros_, elements = sum(c.zeros for c in own), sum(c.elements for c in own)
            assert group.counted == (zeros_, elements)
            assert group.width == -(-group.size * (elements - zeros_) // elements)
            assert group.driver == f"block {prefix}"
        else:
            assert group.width == group.size
            assert group.driver == "blocks share it"
    slim = rsprune.compress(model, torch.randn(1, 3, 64, 64))
    for name, module in slim.named_modules():
        if name.endswith("conv3"):
            assert module.out_channels == model.get_submodule(name).out_channels
            assert module.in_channels == plan.widths[name.replace("conv3", "conv2")]


def test_the_papers_figure_for_resnet50_is_62_to_63_percent_zeros_in_every_block() -> None:
    """Table 2's 2.9x, as it is printed, comes out between 316/512 and 324/512 of zeros, not beside.

    Of the multiply-accumulates, 11.7 % lie in the stem, the projections and the classifier, which
    the block rule leaves alone; 43.0 % shrink with the inner widths and 45.2 % with their square.
    """
    model = ResNet(50)
    graph = rsprune.trace(model, torch.randn(1, 3, 224, 224))
    weights = [
        w for name, w in model.named_parameters() if name.startswith("layer") and w.dim() > 1
    ]
    ratios, plans = {}, {}
    for share in (315, 316, 320, 323, 324):  # 512ths of every weight; where they lie says nothing
        for weight in weights:
            weight.data.view(-1)[: weight.numel() * share // 512] = 0
        plans[share] = plan_widths(model, graph, unit="block")
        ratios[share] = round(plans[share].full_macs / plans[share].macs, 1)
    assert ratios == {315: 2.8, 316: 2.9, 320: 2.9, 323: 2.9, 324: 3.0}
    assert plans[320].full_macs == 4_089_184_256
    assert plans[320].macs == 479_723_520 + 1_759_772_672 * 3 // 8 + 1_849_688_064 * 9 // 64
    for group in plans[320].groups:  # 62.5 % zeros leave 24, 48, 96 and 192 channels
        inner = group.name.endswith((".conv1", ".conv2"))
        assert group.width == (group.size * 3 // 8 if inner else group.size)


@pytest.mark.parametrize(
    ("make", "unit"),
    [
        (VGG16, "layer"),
        (lambda: CifarResNet(20), "block"),
        (lambda: classifier("mobilenet_v2"), "block"),
        (Dense, "layer"),
        (lambda: classifier("squeezenet1_1"), "layer"),
    ],
    ids=["vgg16", "resnet20", "mobilenet_v2", "dense", "squeezenet"],
)
def test_auto_is_block_where_paths_join_by_addition(make: object, unit: str) -> None:
    assert plan_of(make(), IMAGE).unit == unit  # type: ignore[operator]


def test_blocks_joined_by_concatenation() -> None:
    """Asked for blocks where nothing is added, any join counts: shared groups stay whole."""
    plan = plan_of(sparsify(Dense(), 0.5), unit="block")
    assert plan.widths == {"stem": 8, "one": 4, "two": 4}
    assert plan_of(sparsify(Dense(), 0.5), unit="layer").widths == {"stem": 4, "one": 2, "two": 2}


def test_groups_in_no_block_follow_the_layer_rule() -> None:
    """In MobileNetV2 an inverted residual with stride 2 has no shortcut."""
    model = classifier("mobilenet_v2")
    plan = plan_of(sparsify(model, {"features.2.conv.2.weight": 0.75}), epsilon=0.1)
    inverted = {group.name: group for group in plan.groups}["features.2.conv.0.0"]
    assert (inverted.size, inverted.width, inverted.driver) == (96, 24, "features.2.conv.2")


@pytest.mark.parametrize(
    ("size", "share", "round_to", "epsilon", "width"),
    [
        (64, 0.5, 8, 0.1, 32),
        (64, 0.55, 8, 0.1, 32),  # 29 -> 32
        (64, 0.65, 8, 0.1, 24),  # 23 -> 24
        (64, 0.6875, 8, 0.1, 24),  # 20, a tie, goes up
        (64, 1.0, 8, 0.1, 8),  # 7 -> 8
        (64, 1.0, 8, 0.15, 16),  # the floor is 10: 8 would be below it
        (64, 1.0, 4, 0.0, 4),  # 1 -> 4, not 0
        (60, 0.0, 8, 0.1, 60),  # never more than there are
        (6, 0.5, 8, 0.1, 6),  # too few to round
    ],
)
def test_rounding(size: int, share: float, round_to: int, epsilon: float, width: int) -> None:
    """To the nearest multiple, ties up, not below the floor, at most the size."""
    model = nn.Sequential(nn.Conv2d(3, size, 1), nn.ReLU(), nn.Conv2d(size, 16, 1))
    sparsify(model, {"2.weight": share})
    plan = plan_of(model, round_to=round_to, epsilon=epsilon)
    assert plan.widths == {"0": width}


def test_a_plan_is_frozen_and_prints_as_a_table() -> None:
    """For every group: from, to, which sparsity drove it."""
    plan = plan_of(sparsify(Chain(), {"b.weight": 0.7}))
    with pytest.raises(FrozenInstanceError):
        plan.unit = "block"  # type: ignore[misc]
    head, first, *_, last = str(plan).splitlines()
    assert head.split() == ["group", "from", "to", "sparsity", "driven", "by"]
    assert first.split() == ["a", "10", "3", "70.0%", "b"]
    assert f"{plan.full_macs:,} -> {plan.macs:,}" in last


def test_tied_weights_count_once() -> None:
    """A weight that an embedding and a linear layer share reads the group that it also makes."""

    plan = plan_of(sparsify(Tied(), {"table.weight": 0.5}), torch.arange(6).view(2, 3))
    assert [(group.size, group.width, group.counted) for group in plan.groups] == [
        (8, 4, (80, 160))
    ]
