"""publish: whole, without this machine's paths, over nothing but an earlier publication."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rsprune.engine.directory import recipe_of
from rsprune.engine.recipe import Recipe
from rsprune.errors import RsPruneWarning, RunError, StorageError
from rsprune.metrics.comparison import read_comparison
from rsprune.report import publish, write_report
from tests.unit.report.events import events, latency, write

FILES = ["events.jsonl", "history.json", "model.safetensors", "recipe.toml", "report.md"]
PICTURES = ["accuracy.svg", "sparsity.svg", "widths.svg"]
SECRET = "someones-home"


def finished(directory: Path, model: str = "small_cnn") -> Path:
    """A finished run, as the engine leaves it, made far away from where it is published."""
    home = f"/{SECRET}/deep"
    recipe = Recipe(
        model="small_cnn",
        data=f"imagefolder:{home}/photos",
        weights=f"{home}/trained.pt",
        loading={"directory": home, "size": 32},
        model_options={"table": f"{home}/table.csv", "width": 8},
    )
    told = events()
    told[0] |= {"model": model, "data": recipe.data, "recipe": recipe.model_dump(mode="json")}
    told[0] |= {"weights_sha256": "00ff"}
    write(directory, told)
    (directory / "recipe.toml").write_text(recipe.to_toml())
    (directory / "model.safetensors").write_bytes(bytes(range(256)))
    (directory / "history.json").write_text("{}\n")
    (directory / "state").mkdir(exist_ok=True)
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_publication_is_whole_and_tells_no_paths(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run, target = finished(tmp_path / "run"), tmp_path / "results" / "mine"
    assert [path.name for path in publish(run, target)] == sorted(FILES + PICTURES)
    found = contents(target)
    assert sorted(found) == sorted(FILES + PICTURES)
    for name, content in found.items():
        assert SECRET.encode() not in content, name
        assert str(tmp_path).encode() not in content, name
    assert found["model.safetensors"] == (run / "model.safetensors").read_bytes()
    recipe = recipe_of(target)
    assert (recipe.weights, recipe.data) == ("trained.pt", "imagefolder:photos")
    assert recipe.loading == recipe_of(run).loading.model_copy(update={"directory": None})
    assert recipe.model_options == {"table": "table.csv", "width": 8}
    assert recipe.explore == recipe_of(run).explore
    told = [json.loads(line) for line in found["events.jsonl"].splitlines()]
    assert told[1:] == events()[1:]  # to the last digit
    assert told[0]["recipe"] == recipe.model_dump(mode="json")


def test_latency_is_published_without_what_this_machine_lacks(tmp_path: Path) -> None:
    """Twice: its file belongs to a publication."""
    run, target = finished(tmp_path / "run"), tmp_path / "mine"
    latency(f"no compiler in /{SECRET}/bin").write(run / "latency.json")
    for _ in range(2):
        publish(run, target)
    assert read_comparison(target / "latency.json").rows == latency().rows
    assert "## Latency" in (target / "report.md").read_text()
    assert all(SECRET.encode() not in content for content in contents(target).values())


def test_the_report_shows_the_pictures_and_can_be_written_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "mine"
    publish(finished(tmp_path / "run"), target)
    text = (target / "report.md").read_text()
    for name in PICTURES:
        assert f"]({name})" in text
    assert text.startswith("# small\\_cnn on imagefolder:photos\n")
    assert "`rsprune evaluate .`" in text
    assert "from trained.pt (SHA-256 00ff), which has to be there" in text
    write_report(target)
    assert (target / "report.md").read_text() == text


def test_weights_of_a_run_that_did_not_record_their_sum(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    log = run / "events.jsonl"
    log.write_text(log.read_text().replace('"weights_sha256": "00ff"', '"weights_sha256": null'))
    write_report(run)
    assert "from trained.pt, which has to be there" in (run / "report.md").read_text()


def test_an_earlier_publication_is_replaced(tmp_path: Path) -> None:
    """Even by itself; a page that was written there since goes."""
    run, target = finished(tmp_path / "run"), tmp_path / "mine"
    publish(run, target)
    first = contents(target)
    (target / "report.html").write_text("a page")
    (target / "history.json").write_text("changed")
    publish(run, target)
    assert contents(target) == first
    publish(target, target)
    assert contents(target) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "run"]


def test_an_empty_directory_is_a_place(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert publish(finished(tmp_path / "run"), tmp_path / "mine")


def test_what_is_not_finished_is_not_published(tmp_path: Path) -> None:
    run, target = finished(tmp_path / "run"), tmp_path / "mine"
    (run / "history.json").unlink()
    with pytest.raises(RunError, match=r"has no history\.json"):
        publish(run, target)
    write(run, events()[:-1])
    with pytest.raises(RunError, match=r"is not finished; .* rsprune compress --resume .*run"):
        publish(run, target)
    assert not target.exists()


def test_nothing_else_is_replaced(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "recipe.toml").write_text("")
    publish(finished(tmp_path / "other", model="vgg16"), tmp_path / "results")
    for name, words in (
        ("file", "'.*file' is a file"),
        ("work", r"holds 'thesis\.tex', which no published run has"),
        ("recipes", r"holds no events\.jsonl, which published runs have"),
        ("run", "holds 'state', which no published run has"),
        ("results", "holds vgg16 on imagefolder:photos, not small_cnn on imagefolder:photos"),
    ):
        with pytest.raises(RunError, match=f"{words}.* Choose another directory with --to"):
            publish(run, tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    assert (tmp_path / "work" / "thesis.tex").read_text() == "years"
    with pytest.raises(StorageError, match="file/inside' could not be written"):
        publish(run, tmp_path / "file" / "inside")


def test_without_matplotlib_there_are_no_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning says so, and how to get them; the same command adds them later."""
    run, target = finished(tmp_path / "run"), tmp_path / "mine"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        with pytest.warns(RsPruneWarning, match=r'without pictures.*"rsprune\[pictures\]"'):
            publish(run, target)
        assert sorted(contents(target)) == FILES
        assert ".svg" not in (target / "report.md").read_text()
    pytest.importorskip("matplotlib")
    publish(run, target)
    assert sorted(contents(target)) == sorted(FILES + PICTURES)
