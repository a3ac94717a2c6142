"""Pictures: the events' own numbers, every name, the phases, small, and the same bytes again."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rsprune.report.figures import figures
from rsprune.report.pictures import PICTURES, to_svg
from rsprune.report.read import read_run
from tests.unit.report.events import events, write

pytest.importorskip("matplotlib", reason='pictures need pip install "rsprune[pictures]"')

LIMIT = 200_000  # bytes


def drawn(directory: Path, told: list[dict[str, Any]] | None = None) -> dict[str, bytes]:
    found = figures(read_run(write(directory, told)))
    return {name: to_svg(found[name]) for name in PICTURES}


def texts(svg: bytes) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}text")]


def curves(svg: bytes) -> list[list[tuple[float, float]]]:
    """The points of every line that is not straight, in the order they were drawn."""
    paths = re.findall(rb'<path d="([^"z]*)" clip-path[^>]*fill: none', svg)
    points = [re.findall(rb"([-\d.]+) ([-\d.]+)", path) for path in paths]
    return [[(float(x), float(y)) for x, y in line] for line in points if len(line) > 2]


def test_sparsity_is_drawn_to_scale(tmp_path: Path) -> None:
    """Each curve's height is the layer's sparsity; first to last layer, then all together."""
    told = [e for e in events() if e["event"] == "epoch" and e["stage"] == "explore"]
    found = curves(drawn(tmp_path)["sparsity"])
    wanted = [[e["layers"][name] for e in told] for name in told[0]["layers"]]
    wanted.append([e["sparsity"] for e in told])
    assert len(found) == len(wanted)
    scale = _slope(found[0], wanted[0])
    for line, values in zip(found, wanted, strict=True):
        assert len(line) == len(values)
        assert _slope(line, values) == pytest.approx(scale, rel=0.01)
        for (_, y), value in zip(line, values, strict=True):
            assert y == pytest.approx(line[0][1] + scale * (value - values[0]), abs=0.1)


def _slope(line: list[tuple[float, float]], values: list[float]) -> float:
    high, low = values.index(max(values)), values.index(min(values))
    return (line[high][1] - line[low][1]) / (values[high] - values[low])


def test_pictures_name_what_they_show(tmp_path: Path) -> None:
    found = {name: texts(svg) for name, svg in drawn(tmp_path).items()}
    layers = {"conv1", "conv2", "conv3", "fc1", "fc2"}
    assert layers | {"prox phase", "orthant phase", "all layers"} <= set(found["sparsity"])
    assert {"explore 1", "explore 2"} <= set(found["sparsity"])
    assert layers | {"before", "after"} <= set(found["widths"])
    finish = events()[-1]["layers"]
    numbers = [str(layer[side]["shape"][0]) for side in ("before", "after") for layer in finish]
    assert all(number in found["widths"] for number in numbers)
    assert {"baseline", "fine-tune", "training", "validation"} <= set(found["accuracy"])


def test_the_same_run_is_the_same_bytes(tmp_path: Path) -> None:
    assert drawn(tmp_path) == drawn(tmp_path)


def test_networks_of_56_layers(tmp_path: Path) -> None:
    """Every width is named, a scale takes the place of 56 names, and git can hold it."""
    names = [f"layer{1 + i // 18}.{i % 18 // 2}.conv{1 + i % 2}" for i in range(56)]
    told = events()
    explored = [e for e in told if e["event"] == "epoch" and e["stage"] == "explore"]
    for number, epoch in enumerate(explored):
        epoch["layers"] = {
            f"{name}.weight": 0.5 + 0.4 * math.sin(1.7 * number + i) for i, name in enumerate(names)
        }
    at = told.index(explored[-1]) + 1
    told[at:at] = [{**explored[-1], "epoch": 13 + i} for i in range(100)]
    told[-1]["layers"] = [{**told[-1]["layers"][0], "name": name} for name in names]
    found = drawn(tmp_path, told)
    assert max(map(len, found.values())) < LIMIT
    assert set(names) <= set(texts(found["widths"]))
    shown = texts(found["sparsity"])
    assert names[1] not in shown
    assert {"first layer", names[0], "last layer", names[-1], "prox phase"} <= set(shown)


def test_odd_names_and_gaps(tmp_path: Path) -> None:
    """Names are text, never markup or formulas; a diverged epoch is a gap."""
    told = events()
    for epoch in (e for e in told if e["event"] == "epoch"):
        epoch["layers"] = {"a<b>&$x^2$.weight": 0.25}
        epoch["validation_accuracy"] = float("nan")
    told[-1]["layers"][0]["name"] = "<script>$y$"
    found = drawn(tmp_path, told)
    assert "a<b>&$x^2$" in texts(found["sparsity"])
    assert "<script>$y$" in texts(found["widths"])


def test_a_first_epoch_is_a_point(tmp_path: Path) -> None:
    told = events()
    first = next(e for e in told if e["event"] == "epoch" and e["stage"] == "explore")
    told = [e for e in told if e["event"] != "epoch" or e is first]
    assert "all layers" in texts(drawn(tmp_path, told)["sparsity"])
