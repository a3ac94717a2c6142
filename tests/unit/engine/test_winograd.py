"""Winograd's convolutions are those of conv2d, and stay out where they do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from rsprune.data import load
from rsprune.engine import transforms, winograd
from rsprune.engine.evaluate import accuracy
from rsprune.engine.machine import Machine
from rsprune.engine.recipe import Recipe, read_recipe
from rsprune.engine.winograd import Winograd
from rsprune.errors import InvalidParameterError, RecipeError, RunError
from rsprune.models import SmallCNN
from tests.compiler import compiled

USUAL = "ConvolutionBackward0"

# maps whose tiles overhang, of one tile, of many, and those that are one matrix product
SHAPES = [(8, 8), (5, 7), (3, 3), (4, 4), (33, 9), (1, 5), (2, 2), (1, 2), (2, 1), (1, 1)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer(*sizes: int, **more: object) -> nn.Conv2d:
    torch.manual_seed(0)
    return nn.Conv2d(*(sizes or (40, 40, 3)), **{"padding": 1, **more})  # type: ignore[arg-type]


def image(*sizes: int) -> Tensor:
    return drawn(*(sizes or (2, 40, 9, 9))).float()


def results(
    images: Tensor, filters: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> list[Tensor]:
    """Outputs, and the gradients of a random linear function of them."""
    leaves = [images, filters] + ([] if bias is None else [bias])
    leaves = [leaf.to(dtype).requires_grad_() for leaf in leaves]
    outputs = F.conv2d(*leaves[:2], None if bias is None else leaves[2], padding=1)
    took = type(outputs.grad_fn).__name__
    assert (took == USUAL) == (dtype == torch.float64), took
    slopes = drawn(*outputs.shape, seed=3).to(dtype)
    return [outputs, *torch.autograd.grad((outputs * slopes).sum(), leaves)]


def compare(images: Tensor, filters: Tensor, bias: Tensor | None = None) -> None:
    expected = results(images, filters, bias, torch.float64)
    with Winograd():
        actual = results(images, filters, bias, torch.float32)
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() < 2e-5 * other.abs().max()


@compiled
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_conv2d(shape: tuple[int, int], biased: bool) -> None:
    bias = drawn(40, seed=2) if biased else None
    compare(drawn(6, 48, *shape), drawn(40, 48, 3, 3, seed=1), bias)


@compiled
def test_a_batch_larger_than_a_part_is_put_together() -> None:
    images = drawn(23, 40, 32, 32)
    assert len(list(winograd._parts(images, 40))) > 2
    compare(images, drawn(40, 40, 3, 3, seed=1))


@compiled
@pytest.mark.parametrize("side", [9, 2])
def test_an_empty_batch_gives_an_empty_result(side: int) -> None:
    own = layer()
    with Winograd():
        scores = own(image(0, 40, side, side))
    scores.sum().backward()
    assert scores.shape == (0, 40, side, side)
    assert not own.weight.grad.any()


@compiled
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_the_bits_of_what_they_share(threads: int) -> None:
    """The transforms; the matrix products between them are torch's."""
    images, before = image(3, 40, 21, 9).to(memory_format=torch.channels_last), []
    tiles = 3 * 6 * 3
    usual = torch.get_num_threads()
    try:
        for count in (1, threads):
            torch.set_num_threads(count)
            slabs, back = winograd._slabs(tiles, 40), torch.empty_like(images)
            transforms.transform("input_to_slabs", images, slabs)
            transforms.transform("slabs_back_to_input", back, slabs)
            before.append((slabs.clone(), back))
    finally:
        torch.set_num_threads(usual)
    for one, other in zip(*before, strict=True):
        assert torch.equal(one, other)


@compiled
@pytest.mark.parametrize(
    ("other", "images"),
    [
        (layer(stride=2), image()),
        (layer(padding=0), image()),
        (layer(padding=2, dilation=2), image()),
        (layer(padding="same"), image()),
        (layer(40, 40, 5), image()),
        (layer(80, 40, 3, groups=2), image(2, 80, 9, 9)),
        (layer(3, 40, 3), image(2, 3, 9, 9)),
        (layer(32, 40, 3), image(2, 32, 9, 9)),
        (layer(40, 44, 3), image()),
        (layer().double(), image().double()),
        (layer(), image(40, 9, 9)),
        (layer(device="meta"), image().to("meta")),
    ],
)
def test_other_convolutions_are_computed_as_ever(other: nn.Conv2d, images: Tensor) -> None:
    took = "SqueezeBackward1" if images.dim() == 3 else USUAL  # of a single image, its batch of one
    with Winograd():
        assert type(other(images).grad_fn).__name__ == took
    if not images.is_meta:
        expected = other(images)
        with Winograd():
            assert torch.equal(other(images), expected)


@compiled
@pytest.mark.parametrize(
    "arguments",
    [
        (image(), layer().weight, torch.zeros(41)),
        (image(), layer().weight, torch.zeros(40).double()),
        (image(2, 48, 9, 9), layer().weight, None),
    ],
)
def test_what_conv2d_refuses_is_refused(arguments: tuple[Tensor, ...]) -> None:
    with Winograd(), pytest.raises(RuntimeError):
        F.conv2d(*arguments, padding=1)


@compiled
def test_a_layer_takes_the_fast_way_only_within() -> None:
    own = layer()
    with Winograd():
        assert type(own(image()).grad_fn).__name__ != USUAL
    assert type(own(image()).grad_fn).__name__ == USUAL


@compiled
def test_autocast_has_its_own_way() -> None:
    with Winograd(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer()(image()).dtype == torch.bfloat16


@compiled
def test_activations_may_be_computed_again() -> None:
    """By ``torch.utils.checkpoint``, which expects what it computed first."""
    own = layer()
    with Winograd():
        expected, again = own(image()), checkpoint(own, image(), use_reentrant=False)
    slopes = [torch.autograd.grad(y.square().sum(), own.weight)[0] for y in (expected, again)]
    assert torch.allclose(*slopes, rtol=1e-3, atol=1e-3 * slopes[0].abs().max().item())


@compiled
def test_what_follows_may_write_in_place() -> None:
    own = nn.Sequential(layer(), nn.ReLU(inplace=True))
    own(image()).sum().backward()
    expected = own[0].weight.grad.clone()
    own.zero_grad()
    with Winograd():
        own(image()).sum().backward()
    assert torch.allclose(own[0].weight.grad, expected, rtol=1e-3, atol=1e-3)


@compiled
@pytest.mark.parametrize(
    ("frozen", "idle"), [("images", "slabs_back_to_input"), ("weight", "input_to_slabs")]
)
def test_gradients_that_nobody_needs_are_not_computed(
    frozen: str, idle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, images = layer(), image().requires_grad_(frozen != "images")
    own.weight.requires_grad_(frozen != "weight")
    with Winograd():
        scores = own(images)
    called: list[str] = []
    monkeypatch.setattr(winograd, "transform", lambda name, *_: called.append(name))
    scores.sum().backward()
    assert "output_back_to_slabs" in called
    assert idle not in called


@compiled
def test_a_second_derivative_is_refused() -> None:
    images = image().requires_grad_()
    with Winograd():
        scores = layer()(images)
    (slope,) = torch.autograd.grad((scores**2).sum(), images, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


# -- in a run ---------------------------------------------------------------------------------


@pytest.fixture
def machine() -> Machine:
    return Machine(Recipe(winograd=True, device="cpu"))


@compiled
def test_training_takes_it_and_accuracies_do_not(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine.fast():
        assert type(layer()(image()).grad_fn).__name__ != USUAL
    monkeypatch.setattr(winograd, "transform", lambda *_: pytest.fail("it was transformed"))
    assert 0 <= accuracy(machine.place(SmallCNN(width=40)), load("digits").test, machine) < 1


def test_a_gpu_is_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "device", torch.device("cuda"))
    with (
        pytest.raises(InvalidParameterError, match=r"winograd.* false on a GPU.*device"),
        machine.fast(),
    ):
        pass


@pytest.mark.parametrize("other", [{"precision": "bf16"}, {"compile": "true"}])
def test_two_fast_ways_at_once_are_refused(other: dict[str, str]) -> None:
    with pytest.raises(RecipeError, match=r"winograd = true is for .*Choose one"):
        read_recipe(None, {"winograd": "true", **other})


# -- the compiler -----------------------------------------------------------------------------


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Puts a script in the place of g++, for which nothing is compiled yet."""

    def put(script: str) -> None:
        (tmp_path / "g++").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "g++").chmod(0o755)

    transforms.library.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    yield put
    transforms.library.cache_clear()


@pytest.mark.usefixtures("compiler")
def test_a_missing_compiler_is_named_in_training_alone(machine: Machine) -> None:
    assert 0 <= accuracy(SmallCNN(width=8), load("digits").test, machine) < 1
    with (
        pytest.raises(RunError, match=r"winograd = true needs Linux and g\+\+ .*or leave"),
        machine.fast(),
    ):
        pass


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'x.cpp:1: error: no' >&2; echo '  ^~~' >&2; exit 1", r"\(x\.cpp:1: error: no\)"),
        ("exit 4", r"\(exit code 4\)"),
    ],
)
def test_a_compiler_that_fails_is_quoted(
    compiler: Callable[[str], None], script: str, reason: str
) -> None:
    compiler(script)
    with pytest.raises(RunError, match=rf"cannot compile transforms\.cpp {reason}\. Leave"):
        Winograd()


def test_a_library_that_cannot_be_loaded_is_told_of(compiler: Callable[[str], None]) -> None:
    compiler('for last in "$@"; do :; done; echo nonsense > "$last"')
    with pytest.raises(RunError, match=r"transforms\.cpp cannot be loaded .*leave winograd out"):
        Winograd()
