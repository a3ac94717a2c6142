"""A recipe says everything once, and every mistake in it is reported at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsprune.engine.recipe import Recipe, read_recipe, recipe_keys
from rsprune.errors import RecipeError


def test_defaults_survive_a_file(tmp_path: Path) -> None:
    """What a run writes is what it reads."""
    path = tmp_path / "recipe.toml"
    recipe = read_recipe(None, {"explore.lam": "2e-3", "model_options.width": "8"})
    path.write_text(recipe.to_toml())
    assert read_recipe(path) == recipe
    assert recipe.explore.lam == 2e-3
    assert recipe.model_options == {"width": 8}


def test_options_stand_above_the_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('model = "vgg16"\n[explore]\nlam = 0.1\nepochs = 3\n')
    recipe = read_recipe(path, {"explore.lam": "1e-4", "recursion.lambda-rule": "constant"})
    assert (recipe.model, recipe.explore.lam, recipe.explore.epochs) == ("vgg16", 1e-4, 3)
    assert recipe.recursion.lambda_rule == "constant"


def test_every_mistake_is_reported_at_once(tmp_path: Path) -> None:
    """Each with the file, the key, what is allowed, what was given, and a remedy."""
    path = tmp_path / "bad.toml"
    path.write_text(
        'modle = "vgg16"\n'
        "seed = -1\n"
        '[explore]\nlamda = 1e-3\nlr = "fast"\noptimizer = "adam"\nsmall = 0.5\n'
        "[compress]\nepsilon = 2\n"
        "[finetune]\ndistil = 0.5\n"
    )
    with pytest.raises(RecipeError) as caught:
        read_recipe(path, {"explore.epoch": "3", "explor.epochs": "3", "recursion.rounds": "0"})
    problems = "\n".join(caught.value.problems)
    assert len(caught.value.problems) == 11
    assert problems.count(str(path)) == 8
    for words in (
        "modle: unknown key. Did you mean model?",
        "explore.lamda: unknown key. Did you mean explore.lam?",
        "finetune.distil: unknown key. Did you mean finetune.distill?",
        "explore.small: unknown key. Did you mean baseline.small or finetune.small?",
        "--explor.epochs: unknown option. Did you mean --explore.epochs?",
        "--explore.epoch: unknown option. Did you mean --explore.epochs?",
        "seed: must be greater than or equal to 0. Got -1. seed: of everything",
        "explore.lr: must be a number",
        "Got 'adam'",
        "compress.epsilon: must be less than or equal to 1. Got 2",
        "--recursion.rounds: must be greater than or equal to 1. Got 0",
    ):
        assert words in problems, words


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "no such file"), (b"model = ", "is no TOML"), (b"\xff\xfe", "cannot be read")],
)
def test_a_file_that_is_none(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "recipe.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecipeError, match=words):
        read_recipe(path)


def test_keys_that_exclude_each_other() -> None:
    with pytest.raises(RecipeError, match=r"compress\.epsilon has no meaning"):
        read_recipe(
            None,
            {
                "compress.mode": "zero-groups",
                "compress.epsilon": "0.2",
                "explore.optimizer": "hspg",
            },
        )
    with pytest.raises(RecipeError, match=r"only explore\.optimizer = 'hspg'"):
        read_recipe(None, {"compress.mode": "zero-groups"})
    for key, value in (("explore.clip", "1"), ("precision", "fp16")):
        with pytest.raises(RecipeError, match=rf"{key}.*'prox-svrg'"):
            read_recipe(None, {"explore.optimizer": "prox-svrg", key: value})
    with pytest.raises(RecipeError, match=r"finetune\.views .*there is no teacher"):
        read_recipe(None, {"finetune.views": "4", "finetune.distill": "0"})
    aim = {"compress.target_macs": "0.5"}
    assert read_recipe(None, {"compress.spread": "cost", **aim}).compress.spread == "cost"
    for more in ({}, {**aim, "compress.target_params": "0.6"}, {**aim, "recursion.rounds": "2"}):
        with pytest.raises(RecipeError, match=r"compress\.spread = 'cost' is for one round with"):
            read_recipe(None, {"compress.spread": "cost", **more})
    groups = {"compress.mode": "zero-groups", "explore.optimizer": "hspg"}
    assert read_recipe(None, {**groups, "compress.spread": "even"}).compress.mode == "zero-groups"
    both = {"explore.optimizer": "prox-svrg", "explore.clip": "1", "compress.mode": "zero-groups"}
    with pytest.raises(RecipeError, match=r"explore\.clip .*only explore\.optimizer = 'hspg'"):
        read_recipe(None, both)


def test_every_key_says_what_it_is() -> None:
    for key, field in recipe_keys():
        assert field.description, key


def test_a_recipe_does_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Recipe().seed = 3  # type: ignore[misc]
