"""The network of a run: it fits its data, and weights that do not fit it are refused in a line."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import rsprune
from rsprune.engine.network import build_network, load_weights
from rsprune.engine.recipe import Recipe
from rsprune.errors import FileFormatError, InvalidParameterError, RsPruneError
from rsprune.models import SmallCNN

State = dict[str, Tensor]


def network(seed: int = 0) -> SmallCNN:
    torch.manual_seed(seed)
    return SmallCNN(width=4)


def wrapped(state: State) -> State:
    return {f"module.{name}": tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    "kept",
    [
        lambda state: state,
        wrapped,
        lambda state: {"state_dict": wrapped(state), "epoch": 3},
        lambda state: {"model": state, "optimizer": {"state": {}}},
        lambda state: {k: v for k, v in state.items() if "num_batches_tracked" not in k},
        lambda state: {k: v.double() for k, v in state.items()},
    ],
)
def test_weights_as_trainings_keep_them(kept: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.pt"
    torch.save(kept(network().state_dict()), path)
    model = network(seed=1)
    load_weights(model, path)
    for name, parameter in network().named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


def test_weights_of_safetensors_and_of_rsprune(tmp_path: Path) -> None:
    save_file(network().state_dict(), tmp_path / "plain.safetensors")
    rsprune.save(network(), tmp_path / "saved.safetensors")
    for name in ("plain", "saved"):
        model = network(seed=1)
        load_weights(model, tmp_path / f"{name}.safetensors")
        assert torch.equal(model.conv1.weight, network().conv1.weight)


def changed(**tensors: Tensor) -> State:
    state = network().state_dict()
    return {**state, **{name.replace("_", ".", 1): tensor for name, tensor in tensors.items()}}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (network(), "holds more than tensors, and reading it could run any code"),
        ([1, 2], "holds no state dict"),
        ({1: torch.ones(1)}, "holds no state dict"),
        ({"a": 3}, "holds no state dict"),
        ({"a": torch.ones(1)}, r"lacks 'conv1.weight', .* and 16 more; also has 'a'"),
        (changed(conv1_weight=torch.ones(5, 1, 3, 3)), "another shape in 'conv1.weight'"),
        (changed(conv1_weight=torch.full((4, 1, 3, 3), torch.nan)), "NaN .* in 'conv1.weight'"),
    ],
)
def test_weights_that_do_not_fit(content: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.pt"
    torch.save(content, path)
    model = network()
    with pytest.raises(FileFormatError, match=words) as caught:
        load_weights(model, path)
    assert str(path) in str(caught.value)
    assert torch.equal(model.conv1.weight, network().conv1.weight)


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello", None, pickle.dumps({"a": 1})])
def test_files_that_are_damaged(name: str, content: bytes | None, tmp_path: Path) -> None:
    """None: the first half of a good one."""
    path = tmp_path / name
    if content is None:
        save_file(network().state_dict(), tmp_path / "good.safetensors")
        torch.save(network().state_dict(), tmp_path / "good.pt")
        content = (tmp_path / f"good{path.suffix}").read_bytes()[:500]
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"damaged|holds") as caught:
        load_weights(network(), path)
    assert len(str(caught.value)) < 400 + len(str(path))
    assert "weights_only" not in str(caught.value)


@pytest.mark.parametrize("name", ["nothing.pt", "."])
def test_files_that_are_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="There is no file"):
        load_weights(network(), tmp_path / name)


def test_networks_fit_their_data_and_depend_on_the_seed_alone() -> None:
    recipe = Recipe(model="small_cnn", model_options={"width": 4}, seed=3)
    one, two = (build_network(recipe, 7, (3, 12, 12)) for _ in range(2))
    assert one(torch.zeros(2, 3, 12, 12)).shape == (2, 7)
    assert torch.equal(one.get_parameter("fc2.weight"), two.get_parameter("fc2.weight"))
    assert one.training


def test_options_of_the_recipe_stand_above_what_fits() -> None:
    recipe = Recipe(model="resnet20", model_options={"classes": 5})
    with pytest.raises(InvalidParameterError, match=r"which gives \(2, 5\)"):
        build_network(recipe, 10, (3, 32, 32))


def test_images_that_a_model_does_not_take() -> None:
    with pytest.raises(RsPruneError, match=r"'vgg16' does not take images of 1x8x8.*other data"):
        build_network(Recipe(model="vgg16"), 10, (1, 8, 8))


class Nothing(nn.Module):
    def forward(self, _images: Tensor) -> None:
        return None


def test_a_model_that_gives_no_tensor() -> None:
    recipe = Recipe(model=f"{__name__}:Nothing")
    with pytest.raises(InvalidParameterError, match="which returns a NoneType"):
        build_network(recipe, 10, (1, 8, 8))
