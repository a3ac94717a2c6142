"""Half of every network in the zoo: it runs, trains, and computes what it should.

The quick part runs with every test run; the whole zoo with ``pytest -m "zoo or not zoo"``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rsprune
from tests.halving import evaluate, examine, half, relative_difference
from tests.zoo import CLASSIFIERS, ZOO, Entry, import_torchvision

TOLERANCE = 1e-5

# as the networks come: torchvision and timm use parts of torch that it deprecates
pytestmark = pytest.mark.filterwarnings("default", "error::rsprune.RsPruneWarning")

STORED = {"torchvision:mobilenet_v3_small", "torchvision:shufflenet_v2_x0_5", "timm:resnest14d"}


def parameters(entries: list[Entry]) -> pytest.MarkDecorator:
    """One test per network; the slow ones carry the mark."""
    marks = {entry.name: [pytest.mark.zoo] if entry.slow else [] for entry in entries}
    return pytest.mark.parametrize(
        "entry", [pytest.param(entry, marks=marks[entry.name], id=entry.name) for entry in entries]
    )


@pytest.fixture(autouse=True)
def _installed(request: pytest.FixtureRequest) -> None:
    entry = request.getfixturevalue("entry") if "entry" in request.fixturenames else ZOO[0]
    if not entry.installed:
        pytest.skip(f"{entry.name} is not installed")


@parameters(list(ZOO))
def test_half_of_a_network_computes_what_the_zeroed_network_computes(entry: Entry) -> None:
    """In evaluation and training mode; with fewer operations, counted as torch counts them."""
    found = examine(entry)
    assert not found.left_whole
    if entry.refused:
        assert found.units == 0
        assert found.frozen
        return
    assert found.units > 0
    assert found.effect > 100 * TOLERANCE, "the dropped units did nothing"
    if found.statistics:
        assert entry.statistics, found.statistics
        assert found.exact_difference <= TOLERANCE
    else:
        assert found.difference <= TOLERANCE
        assert found.training_difference <= TOLERANCE
    if entry.most_macs is not None:
        assert found.macs <= entry.most_macs
        assert not found.warnings
    for ours, torchs in found.counts:
        assert ours == torchs


@parameters([entry for entry in ZOO if entry.name in STORED])
def test_a_stored_half_comes_back(entry: Entry, tmp_path: Path) -> None:
    model, inputs = entry.build(), entry.inputs()
    graph = rsprune.trace(model, inputs)
    slim = rsprune.prune(model, graph, drop=half(graph))
    rsprune.save(slim, tmp_path / "slim.safetensors")
    loaded = rsprune.load(entry.build(), tmp_path / "slim.safetensors")
    expected = slim.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name])
    # not bit by bit: kernels choose their way by where tensors lie in memory
    assert relative_difference(evaluate(loaded, inputs)[0], evaluate(slim, inputs)[0]) <= 1e-12


def test_no_classifier_of_torchvision_is_left_out() -> None:
    models = import_torchvision().models
    assert set(CLASSIFIERS) >= set(models.list_models(module=models))
