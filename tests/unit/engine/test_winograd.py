"""Winograd's convolutions are those of conv2d, and stay out where they do not fit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rsprune.engine import winograd
from rsprune.engine.machine import Machine
from rsprune.engine.recipe import Recipe, read_recipe
from rsprune.engine.winograd import Winograd
from rsprune.errors import RecipeError, RunError

# maps whose tiles overhang, of one tile, of many parts, and those that are one matrix product
SHAPES = [(8, 8), (5, 7), (3, 3), (4, 4), (33, 9), (2, 2), (1, 2), (2, 1), (1, 1), (1, 5)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def results(
    images: Tensor, filters: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> list[Tensor]:
    """Outputs, and the gradients of a random linear function of them."""
    leaves = [images, filters] + ([] if bias is None else [bias])
    leaves = [leaf.to(dtype).requires_grad_() for leaf in leaves]
    outputs = F.conv2d(*leaves[:2], None if bias is None else leaves[2], padding=1)
    slopes = drawn(*outputs.shape, seed=3).to(dtype)
    return [outputs, *torch.autograd.grad((outputs * slopes).sum(), leaves)]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_conv2d(shape: tuple[int, int], biased: bool) -> None:
    images, filters = drawn(6, 48, *shape), drawn(40, 48, 3, 3, seed=1)
    bias = drawn(40, seed=2) if biased else None
    expected = results(images, filters, bias, torch.float64)
    with Winograd():
        actual = results(images, filters, bias, torch.float32)
    for one, other in zip(actual, expected, strict=True):
        assert (one - other).abs().max() < 3e-5 * other.abs().max()


def test_a_batch_larger_than_a_part_is_put_together() -> None:
    images, filters = drawn(22, 40, 32, 32), drawn(40, 40, 3, 3, seed=1)
    parts = list(winograd._parts(images.permute(0, 2, 3, 1), 40))
    assert len(parts) > 2
    expected = results(images, filters, None, torch.float64)
    with Winograd():
        actual = results(images, filters, None, torch.float32)
    for one, other in zip(actual, expected, strict=True):
        assert (one - other).abs().max() < 3e-5 * other.abs().max()


@pytest.mark.parametrize(
    ("layer", "image"),
    [
        (nn.Conv2d(40, 40, 3, padding=1, stride=2), drawn(2, 40, 9, 9).float()),
        (nn.Conv2d(40, 40, 3, padding=0), drawn(2, 40, 9, 9).float()),
        (nn.Conv2d(40, 40, 3, padding=2, dilation=2), drawn(2, 40, 9, 9).float()),
        (nn.Conv2d(40, 40, 3, padding="same"), drawn(2, 40, 9, 9).float()),
        (nn.Conv2d(40, 40, 5, padding=1), drawn(2, 40, 9, 9).float()),
        (nn.Conv2d(80, 40, 3, padding=1, groups=2), drawn(2, 80, 9, 9).float()),
        (nn.Conv2d(3, 40, 3, padding=1), drawn(2, 3, 9, 9).float()),
        (nn.Conv2d(32, 40, 3, padding=1), drawn(2, 32, 9, 9).float()),
        (nn.Conv2d(40, 44, 3, padding=1), drawn(2, 40, 9, 9).float()),
        (nn.Conv2d(40, 40, 3, padding=1).double(), drawn(2, 40, 9, 9)),
        (nn.Conv2d(40, 40, 3, padding=1), drawn(40, 9, 9).float()),
    ],
)
def test_other_convolutions_are_computed_as_ever(layer: nn.Conv2d, image: Tensor) -> None:
    expected = layer(image)
    with Winograd():
        assert torch.equal(layer(image), expected)


def test_a_layer_takes_the_fast_way_only_within() -> None:
    layer, image = nn.Conv2d(40, 40, 3, padding=1), drawn(2, 40, 9, 9).float()
    before = layer(image)
    with Winograd():
        within = layer(image)
    assert "_Convolution" in type(within.grad_fn).__name__
    assert torch.equal(layer(image), before)


def test_images_without_a_gradient_get_none() -> None:
    layer, image = nn.Conv2d(40, 40, 3, padding=1), drawn(2, 40, 9, 9).float()
    with Winograd():
        layer(image).sum().backward()
    assert image.grad is None
    assert layer.weight.grad is not None


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    winograd._transforms.cache_clear()
    yield
    winograd._transforms.cache_clear()


@pytest.mark.usefixtures("compiled_anew")
def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RunError, match=r"winograd = true needs a C\+\+ compiler .*or leave"):
        Machine(Recipe(winograd=True))


@pytest.mark.usefixtures("compiled_anew")
def test_a_compiler_that_fails_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("bin")
    (directory / "c++").write_text("#!/bin/sh\necho no such option >&2\nexit 1\n")
    (directory / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))
    with pytest.raises(RunError, match=r"cannot compile winograd\.cpp: no such option"):
        Machine(Recipe(winograd=True))


@pytest.mark.parametrize("other", [{"precision": "bf16"}, {"compile": "true"}])
def test_two_fast_ways_at_once_are_refused(other: dict[str, str]) -> None:
    with pytest.raises(RecipeError, match=r"winograd = true is for .*Choose one"):
        read_recipe(None, {"winograd": "true", **other})
