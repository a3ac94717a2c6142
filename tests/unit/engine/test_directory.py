"""How a run directory begins when one process, or several, begin in it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from rsprune.engine.directory import begin, recipe_of
from rsprune.engine.recipe import read_recipe
from rsprune.errors import RunError


def test_the_first_process_refuses_a_directory_that_holds_a_run(tmp_path: Path) -> None:
    begin(read_recipe(None, {}), tmp_path / "run")
    with pytest.raises(RunError, match="holds a run already"):
        begin(read_recipe(None, {}), tmp_path / "run")


def test_other_processes_join_the_run_that_the_first_one_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(read_recipe(None, {}), tmp_path / "run")
    written = (tmp_path / "run" / "recipe.toml").read_bytes()
    monkeypatch.setenv("RANK", "1")
    begin(read_recipe(None, {"seed": "3"}), tmp_path / "run")
    assert (tmp_path / "run" / "recipe.toml").read_bytes() == written


def test_another_process_that_waits_in_vain_says_for_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("rsprune.engine.directory._PATIENCE", 0)
    with pytest.raises(RunError, match=r"first process has not written .*recipe\.toml"):
        begin(read_recipe(None, {}), tmp_path / "run")


def test_runs_from_before_there_was_a_choice_of_spread_are_cut_evenly(tmp_path: Path) -> None:
    begin(read_recipe(None, {"compress.target_macs": "0.5"}), tmp_path)
    assert recipe_of(tmp_path).compress.spread == "auto"
    path = tmp_path / "recipe.toml"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith("spread =")))
    assert recipe_of(tmp_path).compress.spread == "even"
    assert recipe_of(tmp_path).compress.target_macs == 0.5
