"""The demo keeps the README's promise, and every shipped recipe can be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rsprune.cli.app import run
from rsprune.engine.recipe import read_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
FILES = (
    "model.safetensors", "model.onnx", "report.html", "report.md", "history.json", "latency.json",
)  # fmt: skip


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_recipe_names_its_command(path: Path) -> None:
    read_recipe(path)
    assert path.read_text().splitlines()[0] == f"# rsprune compress recipes/{path.name}"


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
