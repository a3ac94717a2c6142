"""Images that begin small, and networks that cannot take small ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from rsprune.engine.directory import begin
from rsprune.engine.growing import grown, small_size
from rsprune.engine.machine import Machine
from rsprune.engine.network import check_small_images
from rsprune.engine.recipe import Dense, Finetune, Recipe
from rsprune.engine.run import execute
from rsprune.errors import RsPruneError
from tests.integration.killing import Quiet


def test_small_for_half_of_the_training() -> None:
    images = torch.zeros(1, 1, 32, 48)
    sizes = [tuple(grown(images, 0.5, done).shape[2:]) for done in (0, 0.49, 0.5, 1)]
    assert sizes == [(16, 24), (16, 24), (32, 48), (32, 48)]
    assert small_size((8,), 0.01) == [1]


def test_colours_stay_and_full_size_costs_nothing() -> None:
    images = torch.full((2, 3, 32, 32), 0.25)
    assert torch.allclose(grown(images, 0.5, 0), torch.full((2, 3, 16, 16), 0.25))
    assert grown(images, 0.5, 0.7) is images
    assert grown(images, 1.0, 0) is images


class Flat(torch.nn.Sequential):
    """Its linear layer fixes the size of the images."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def test_networks_that_do_not_take_small_images_are_refused() -> None:
    """Before any training, with the key that is wrong."""
    recipe = Recipe(model=f"{__name__}:Flat", baseline=Dense(small=0.5))
    with pytest.raises(RsPruneError, match=r"images of 1x4x4.*Raise baseline\.small \(now 0\.5\)"):
        check_small_images(recipe, Flat(), 10, (1, 8, 8))
    trained = recipe.model_copy(update={"weights": "trained.pt"})
    check_small_images(trained, Flat(), 10, (1, 8, 8))
    untrained = recipe.model_copy(update={"baseline": Dense(small=0.5, epochs=0)})
    check_small_images(untrained, Flat(), 10, (1, 8, 8))
    tuned = trained.model_copy(update={"finetune": Finetune(small=0.25)})
    with pytest.raises(RsPruneError, match=r"images of 1x2x2.*Raise finetune\.small \(now 0\.25\)"):
        check_small_images(tuned, Flat(), 10, (1, 8, 8))
    tuned = trained.model_copy(update={"finetune": Finetune(small=0.25, epochs=0)})
    check_small_images(tuned, Flat(), 10, (1, 8, 8))


def test_scores_of_another_shape_are_the_small_images_fault() -> None:
    """The remedy is the size of the images, not the number of classes."""
    recipe = Recipe(model="torch.nn:Flatten", baseline=Dense(small=0.5))
    with pytest.raises(RsPruneError, match=r"gives \(2, 16\).*Raise baseline\.small"):
        check_small_images(recipe, torch.nn.Flatten(), 64, (1, 8, 8))


def test_a_run_finds_that_out_before_it_trains(tmp_path: Path) -> None:
    begin(Recipe(model=f"{__name__}:Flat", baseline=Dense(small=0.5)), tmp_path)
    with pytest.raises(RsPruneError, match=r"Raise baseline\.small"):
        execute(tmp_path, Quiet())


def test_every_size_is_compiled_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for sizes in general would differ from those of a run resumed at full size."""
    sizes: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[object]) -> object:
        sizes.extend(i.shape[-1] for i in inputs if isinstance(i, torch.Tensor) and i.ndim == 4)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    model = Machine(Recipe(compile=True, device="cpu")).compiled(torch.nn.AvgPool2d(2))
    for size in (4, 6, 8, 8):
        model(torch.zeros(2, 1, size, size))
    assert sizes == [4, 6, 8]
    assert all(type(size) is int for size in sizes), "none is a symbol"
