"""The published networks load and cost what their runs recorded, and the pages say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rsprune.cli.app import run
from rsprune.engine.recipe import Recipe, read_recipe
from tests.cifar10 import write_cifar10
from tests.commands import events

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "results").iterdir())
published = pytest.mark.parametrize("directory", RESULTS, ids=lambda path: path.name)


def finish(directory: Path) -> dict[str, Any]:
    return events(directory)[-1]


@published
def test_a_published_network_is_what_its_run_recorded(
    directory: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_cifar10(tmp_path)
    monkeypatch.setenv("RSPRUNE_DATA", str(tmp_path))
    assert run(["evaluate", str(directory), "--threads", "1", "--json"]) == 0
    found, history = (
        json.loads(text)
        for text in (capsys.readouterr().out, (directory / "history.json").read_text())
    )
    for side in ("before", "after"):
        assert found[side] == history[side]
        assert found[side].items() <= finish(directory)[side].items()


@published
def test_the_shipped_recipe_is_that_of_the_run(directory: Path) -> None:
    """But for the file of weights, and for the baseline that a run from weights has none of."""

    def settings(path: Path) -> Recipe:
        recipe = read_recipe(path)
        kept = {"baseline": recipe.baseline} if recipe.weights is None else {}
        return recipe.model_copy(update={"weights": None, "baseline": None, **kept})

    shipped = ROOT / "recipes" / f"{directory.name}.toml"
    assert settings(directory / "recipe.toml") == settings(shipped)


@published
@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "docs/results.md"])
def test_a_page_shows_the_accuracies_of_the_run(directory: Path, page: str) -> None:
    text = (ROOT / page).read_text()
    assert f"{100 * finish(directory)['after']['test_accuracy']:.2f} %" in text


@published
def test_the_table_shows_the_figures_of_the_run(directory: Path) -> None:
    before, after = (finish(directory)[side] for side in ("before", "after"))
    accuracies = [100 * side["test_accuracy"] for side in (before, after)]
    cells = [
        f"{before['macs'] / after['macs']:.2f}x",
        f"{before['weights'] / after['weights']:.2f}x",
        *(f"{accuracy:.2f} %" for accuracy in accuracies),
        f"{accuracies[1] - accuracies[0]:+.2f}",
    ]
    row = f"| [{directory.name}](../results/{directory.name}/report.md) | {' | '.join(cells)} |"
    assert row in (ROOT / "docs/results.md").read_text()
