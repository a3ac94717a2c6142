"""``rsprune recipe``: a file to begin with, in which every key is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("typer")

from rsprune.cli.app import run
from rsprune.engine.recipe import Recipe, read_recipe, recipe_keys


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["recipe"]) == 0
    return capsys.readouterr().out


def test_what_is_printed_is_the_default_recipe(printed: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(printed)
    assert read_recipe(path) == Recipe()


def test_every_key_is_there_with_its_meaning(printed: str) -> None:
    """Also those that have no default, ready to be filled in."""
    lines = printed.splitlines()
    for key, field in recipe_keys():
        name = key.rpartition(".")[2]
        assert any(
            line.removeprefix("# ").startswith(f"{name} =") and f"  # {field.description}" in line
            for line in lines
        ), key


def test_choices_are_listed(printed: str) -> None:
    assert "changes: cosine, step, one-cycle, constant\n" in printed


def test_a_line_can_be_changed(printed: str, tmp_path: Path) -> None:
    """Tables and lists too, at their place in the file."""
    path = tmp_path / "x.toml"
    text = printed.replace("model_options = {}", "model_options = {width = 8}")
    text = text.replace("milestones = [0.5, 0.75]", "milestones = [0.25]")
    path.write_text(text.replace("# target_macs =", "target_macs = 0.5"))
    recipe = read_recipe(path)
    assert recipe.model_options == {"width": 8}
    assert recipe.explore.milestones == (0.25,)
    assert recipe.compress.target_macs == 0.5
