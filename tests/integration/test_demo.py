"""The demo keeps the README's promise, and the shipped recipes run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rsprune.cli.app import run
from rsprune.engine.recipe import read_recipe
from rsprune.models import build
from tests.cifar10 import write_cifar10
from tests.commands import ENVIRONMENT, command

RECIPES = Path(__file__).parents[2] / "recipes"
FILES = (
    "model.safetensors", "model.onnx", "report.html", "report.md", "history.json", "latency.json",
)  # fmt: skip


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_recipe_names_its_command(path: Path) -> None:
    read_recipe(path)
    assert path.read_text().splitlines()[0] == f"# rsprune compress recipes/{path.name}"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*-cifar10.toml")), ids=lambda path: path.stem)
def test_a_recipe_for_cifar10_runs(path: Path, tmp_path: Path) -> None:
    """Whole, with an epoch of each stage, on a handful of images and from weights in a file."""
    write_cifar10(tmp_path)
    recipe = read_recipe(path)
    state = build(recipe.model, **recipe.model_options).state_dict()
    torch.save({"state_dict": state, "best": 0.9}, tmp_path / "weights.th")
    options = (
        "--weights=weights.th", "--loading.validation=0.1", "--explore.epochs=1",
        "--explore.prox_epochs=0.5", "--explore.batch_size=45", "--recursion.tolerance=1",
        "--finetune.epochs=1", "--finetune.batch_size=45", "--threads=1", "--compile=false",
        "--precision=no", "--winograd=false", "--onnx=false", "--json", "--out=run",
    )  # fmt: skip
    environment = {**ENVIRONMENT, "RSPRUNE_DATA": str(tmp_path)}
    done = command("compress", str(path), *options, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    finish = json.loads(done.stdout)
    targets = {"macs": recipe.compress.target_macs, "params": recipe.compress.target_params}
    used = [
        finish["after"][cost] / finish["before"][cost] / target
        for cost, target in targets.items()
        if target is not None
    ]
    assert 0.9 < max(used) <= 1  # the tightest decides


def test_demo_compresses_five_times_at_half_a_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    try:
        code = run(
            ["compress", str(RECIPES / "digits.toml"), "--out", str(tmp_path / "run"), "--json"]
        )
    finally:
        torch.set_num_threads(threads)
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    before, after = found["before"], found["after"]
    assert before["macs"] >= 5 * after["macs"]
    assert before["test_accuracy"] - after["test_accuracy"] <= 0.005
    assert [row["runtime"] for row in found["latency"]] == ["torch", "onnxruntime"]
    for name in FILES:
        assert (tmp_path / "run" / name).is_file()
