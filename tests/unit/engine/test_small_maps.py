"""Convolutions of small maps are those of conv2d, and others are left to it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from rsprune.engine import small_maps
from rsprune.engine.machine import Machine
from rsprune.engine.recipe import Recipe
from rsprune.engine.small_maps import SmallMaps
from tests.compiler import compiled

USUAL = "ConvolutionBackward0"


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def layer(*sizes: int, **more: Any) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(*(sizes or (24, 16, 3)), **{"padding": 1, **more})


def half(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


def results(leaves: list[Tensor | None], slopes: Tensor, way: Any, exact: bool) -> list[Tensor]:
    """Outputs, and the gradients of a random linear function of them."""
    dtype = torch.float64 if exact else torch.float32
    own = [leaf if leaf is None else leaf.to(dtype).requires_grad_() for leaf in leaves]
    with way, half(not exact):
        outputs = F.conv2d(own[0], own[1], own[2], padding=1)  # type: ignore[arg-type]
    took = type(outputs.grad_fn).__name__
    assert (took == USUAL) == isinstance(way, nullcontext), took
    wanted = [leaf for leaf in own if leaf is not None]
    return [outputs, *torch.autograd.grad(outputs, wanted, slopes.to(outputs.dtype))]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(4, 4), (3, 4), (1, 3), (2, 2), (1, 2), (2, 1), (1, 1)])
def test_values_and_gradients_are_as_near_to_the_exact_ones(
    shape: tuple[int, int], biased: bool
) -> None:
    """As conv2d's own in bfloat16, but for a rounding of each of up to four sums."""
    leaves = [drawn(32, 24, *shape), drawn(16, 24, 3, 3, seed=1), drawn(16, seed=2)]
    own: list[Tensor | None] = [*leaves[:2], leaves[2] if biased else None]
    slopes = drawn(32, 16, *shape, seed=3)
    ways = [(nullcontext(), True), (nullcontext(), False), (SmallMaps(), False)]
    found = [results(own, slopes, way, exact) for way, exact in ways]
    for exact, usual, fast in zip(*found, strict=True):
        assert fast.shape == usual.shape
        assert fast.dtype == usual.dtype
        bound = 1.5 * (usual - exact).norm() + 1e-3 * exact.norm()
        assert (fast - exact).norm() < bound


@pytest.mark.parametrize(
    ("other", "images"),
    [
        (layer(), drawn(2, 24, 5, 4)),
        (layer(stride=2), drawn(2, 24, 4, 4)),
        (layer(padding=0), drawn(2, 24, 4, 4)),
        (layer(padding="same"), drawn(2, 24, 4, 4)),
        (layer(24, 16, 1, padding=0), drawn(2, 24, 4, 4)),
        (layer(48, 16, 3, groups=2), drawn(2, 48, 4, 4)),
        (layer(), drawn(0, 24, 4, 4)),
    ],
)
def test_other_convolutions_are_computed_as_ever(other: nn.Conv2d, images: Tensor) -> None:
    with half():
        expected = other(images)
    with SmallMaps(), half():
        scores = other(images)
    assert type(scores.grad_fn).__name__ == USUAL
    assert torch.equal(scores, expected)


@pytest.mark.parametrize("precision", [torch.float32, torch.float16])
def test_other_precisions_are_computed_as_ever(precision: torch.dtype) -> None:
    with SmallMaps(), torch.autocast("cpu", precision, enabled=precision != torch.float32):
        assert type(layer()(drawn(2, 24, 4, 4)).grad_fn).__name__ == USUAL


@pytest.mark.parametrize("side", [4, 2])
def test_what_conv2d_refuses_is_refused(side: int) -> None:
    with SmallMaps(), half(), pytest.raises(RuntimeError):
        F.conv2d(drawn(2, 20, side, side), layer().weight, padding=1)


@pytest.mark.parametrize("frozen", ["images", "weight", "bias"])
def test_gradients_that_nobody_needs_are_not_computed(
    frozen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, images = layer(), drawn(2, 24, 4, 4).requires_grad_(frozen != "images")
    leaves = {"images": images, "weight": own.weight, "bias": own.bias}
    if frozen != "images":
        leaves[frozen].requires_grad_(False)  # type: ignore[union-attr]
    seen: list[Tensor] = []
    as_ever = small_maps._seen
    monkeypatch.setattr(small_maps, "_seen", lambda maps: seen.append(maps) or as_ever(maps))
    with SmallMaps(), half():
        scores = own(images)
    assert len(seen) == 1
    kept = sum(tensor.numel() for tensor in kept_by(scores))
    scores.sum().backward()
    assert {name for name, leaf in leaves.items() if leaf.grad is None} == {frozen}  # type: ignore[union-attr]
    assert len(seen) == (1 if frozen == "images" else 2)  # what outputs are seen by
    taps, filters = 9 * images.numel(), own.weight.numel()
    assert kept == {"images": taps, "weight": filters, "bias": taps + filters}[frozen]


def kept_by(scores: Tensor) -> list[Tensor]:
    """What the convolution that gave ``scores`` keeps for its gradient."""
    node = scores.grad_fn
    while not hasattr(node, "saved_tensors"):
        node = node.next_functions[0][0]  # type: ignore[union-attr]
    return [tensor for tensor in node.saved_tensors if tensor is not None]  # type: ignore[union-attr]


def test_what_follows_may_write_in_place() -> None:
    own = nn.Sequential(layer(), nn.ReLU(inplace=True), layer(16, 16, 3))
    gradients = []
    for way in (nullcontext(), SmallMaps()):
        own.zero_grad()
        with way, half():
            own(drawn(8, 24, 4, 4)).square().sum().backward()
        gradients.append(own[0].weight.grad.clone())
    assert torch.allclose(*gradients, rtol=0.02, atol=0.02 * gradients[0].abs().max().item())


def test_a_second_derivative_is_refused() -> None:
    images = drawn(2, 24, 4, 4).requires_grad_()
    with SmallMaps(), half():
        scores = layer()(images)
    (slope,) = torch.autograd.grad((scores**2).sum(), images, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.parametrize("side", [4, 2])
@pytest.mark.parametrize("last", ["images", "weight", ""])
def test_outputs_lie_in_memory_as_ever(last: str, side: int) -> None:
    """Models that flatten with ``view`` depend on it."""
    images, weight = drawn(8, 24, side, side), drawn(16, 24, 3, 3, seed=1)
    images, weight = (
        leaf.contiguous(memory_format=torch.channels_last) if name == last else leaf
        for name, leaf in (("images", images), ("weight", weight))
    )
    with half():
        expected = F.conv2d(images, weight, padding=1)
    with SmallMaps(), half():
        assert F.conv2d(images, weight, padding=1).stride() == expected.stride()


@pytest.mark.parametrize(
    "images",
    [
        drawn(1, 24, 4, 4),
        drawn(8, 24, 4, 4).bfloat16(),
        drawn(1, 24, 1, 1).expand(8, 24, 4, 4),
        drawn(8, 24, 8, 8)[:, :, ::2, ::2],
        drawn(8, 48, 4, 4).chunk(2, 1)[0],
        drawn(16, 24, 4, 4)[::2],
    ],
    ids=["one", "bfloat16", "expanded", "strided", "chunk", "every-second"],
)
def test_images_of_any_kind(images: Tensor) -> None:
    gradients, strides = [], []
    for way in (nullcontext(), SmallMaps()):
        own = layer()
        with way, half():
            maps = own(images)
            maps.square().sum().backward()
        gradients.append(own.weight.grad)
        strides.append(maps.stride())
    usual, fast = gradients
    assert (fast - usual).norm() < 0.02 * usual.norm()
    assert strides[1] == strides[0]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
def test_a_compiled_network_takes_it_too() -> None:
    """In one graph, which has no convolution left, of which a gradient can be taken."""
    own, graphs = layer(), []

    def collect(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        graphs.append([node.target for node in graph.graph.nodes])
        return graph

    forward = torch.compile(own, dynamic=False, fullgraph=True, backend=collect)
    with half():
        forward(drawn(8, 24, 4, 4))
    with SmallMaps(), half():
        expected, scores = own(drawn(8, 24, 4, 4)), forward(drawn(8, 24, 4, 4))
    assert [torch.conv2d in targets for targets in graphs] == [True, False]
    (slopes,), (found,) = (torch.autograd.grad(y.sum(), own.weight) for y in (expected, scores))
    assert torch.equal(scores, expected)
    assert torch.equal(found, slopes)


# -- in a run ---------------------------------------------------------------------------------


def machine(**more: Any) -> Machine:
    return Machine(Recipe(device="cpu", **more))


def took_it() -> bool:
    return type(layer()(drawn(2, 24, 4, 4)).grad_fn).__name__ != USUAL


def test_training_in_bfloat16_takes_it() -> None:
    own = machine(precision="bf16")
    with own.fast():
        assert took_it()
    with half():
        assert not took_it()


def test_other_trainings_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(machine()._small_maps, nullcontext)
    own = machine(precision="bf16")
    monkeypatch.setattr(Machine, "device", torch.device("cuda"))
    assert isinstance(own._small_maps, nullcontext)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("how", [{}, pytest.param({"compile": True}, marks=compiled)], ids=str)
def test_activations_may_be_computed_again(how: dict[str, bool]) -> None:
    """``torch.utils.checkpoint`` does so while gradients are taken."""

    class Again(nn.Module):
        def __init__(self, again: bool) -> None:
            super().__init__()
            self.layer, self.again = layer(), again

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(self.layer, x, use_reentrant=False) if self.again else self.layer(x)
            return x.square()

    own, gradients = machine(precision="bf16", **how), []
    for again in (False, True):
        model = Again(again)
        with own.fast():
            loss = own.compiled(model)(drawn(8, 24, 4, 4).requires_grad_()).sum()
        own.backward(loss)
        gradients.append(model.layer.weight.grad)
    assert torch.allclose(*gradients, rtol=0.02, atol=0.02 * gradients[0].abs().max().item())
