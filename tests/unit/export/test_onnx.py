"""export_onnx: valid files that compute what the model computes, or nothing at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rsprune
from rsprune.errors import ExportError, InvalidParameterError, StorageError
from rsprune.export import Exported, export_onnx
from rsprune.models import build

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def run(path: Path, *inputs: Tensor) -> list[Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    found: list[Any] = session.run(None, dict(zip(names, [x.numpy() for x in inputs], strict=True)))
    return found


class Pair(nn.Module):
    """Two inputs, of which the second may be given by name, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(5, 4)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"sum": self.a(left) + self.b(right), "left": self.a(left)}


class Noisy(nn.Module):
    """Computes something else at every call, also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1.0
        return x * self.calls


class Zeta(nn.Module):
    """An operator that ONNX does not have."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.zeta(x, x)


@pytest.fixture(scope="module")
def small() -> nn.Module:
    torch.manual_seed(0)
    return build("small_cnn")


@pytest.fixture(scope="module")
def exported(small: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    path = tmp_path_factory.mktemp("export") / "small.onnx"
    small.train()
    small.bn1.eval()
    found = export_onnx(small, torch.randn(1, 1, 8, 8), path, metadata={"model": "small_cnn"})
    assert small.training
    assert not small.bn1.training
    return found


def test_one_file_for_any_batch(small: nn.Module, exported: Exported) -> None:
    """The file alone gives the model's outputs, on batches it was not made with."""
    assert os.listdir(exported.path.parent) == ["small.onnx"]
    assert exported.size == exported.path.stat().st_size
    assert exported.difference <= 1e-4
    assert exported.batches == (1, 3)
    for batch in (1, 2, 7):
        x = torch.randn(batch, 1, 8, 8)
        with torch.no_grad():
            expected = small.eval()(x)
        torch.testing.assert_close(
            torch.tensor(run(exported.path, x)[0]), expected, rtol=1e-4, atol=1e-5
        )


def test_valid_with_metadata(exported: Exported) -> None:
    """onnx finds nothing wrong, and the file says what it is."""
    proto = onnx.load(str(exported.path))
    onnx.checker.check_model(proto, full_check=True)
    texts = {entry.key: entry.value for entry in proto.metadata_props}
    assert texts == {"rsprune": rsprune.__version__, "model": "small_cnn"}
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_existing_files_stay(exported: Exported, small: nn.Module) -> None:
    """Without force, a file that is there is refused at once and left as it is."""
    before = exported.path.read_bytes()
    with pytest.raises(ExportError, match="--force"):
        export_onnx(small, torch.randn(1, 1, 8, 8), exported.path)
    assert exported.path.read_bytes() == before


def test_force_replaces(tmp_path: Path) -> None:
    """With force, the new model takes the old file's place."""
    path = tmp_path / "model.onnx"
    path.write_text("old")
    export_onnx(nn.Linear(2, 2), torch.randn(2, 2), path, force=True)
    assert run(path, torch.zeros(5, 2))[0].shape == (5, 2)


def test_inputs_by_name_and_several_outputs(tmp_path: Path) -> None:
    """Keyword arguments in any order reach the right inputs."""
    model, inputs = Pair(), {"right": torch.randn(2, 5), "left": torch.randn(2, 3)}
    found = export_onnx(model, inputs, tmp_path / "pair.onnx")
    assert found.difference <= 1e-4
    outputs = run(found.path, torch.randn(4, 3), torch.randn(4, 5))
    assert [y.shape for y in outputs] == [(4, 4), (4, 4)]


def test_a_pruned_model(tmp_path: Path) -> None:
    """What rsprune.prune made is an ordinary model to the exporter."""
    model, x = build("small_cnn"), torch.randn(2, 1, 8, 8)
    graph = rsprune.trace(model, x)
    group = next(g for g in graph.groups if g.prunable)
    slim = rsprune.prune(model, graph, drop={group.name: [0, 1, 2]})
    assert export_onnx(slim, x, tmp_path / "slim.onnx").difference <= 1e-4


@pytest.mark.parametrize(
    ("model", "said"), [(Zeta(), "zeta"), (Noisy(), "differ by")], ids=["operator", "parity"]
)
def test_nothing_is_written(
    model: nn.Module, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A model that cannot be exported, or would compute something else, leaves no file."""
    with pytest.raises(ExportError, match=said) as caught:
        export_onnx(model, torch.rand(2, 3) + 1.5, tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("path", ["", "missing/model.onnx"], ids=["directory", "no directory"])
def test_unusable_paths(path: str, tmp_path: Path) -> None:
    """Refused before the work begins."""
    with pytest.raises(InvalidParameterError, match="a file in a directory that exists"):
        export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / path)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no directory that refuses everyone")
def test_read_only_directory() -> None:
    """The error names the file, which not even root could write."""
    with pytest.raises(StorageError, match=r"/proc/model\.onnx"):
        export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), "/proc/model.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_its_packages(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the package and the extra that brings it."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExportError, match=rf'\({package}\).*pip install "rsprune\[export\]"'):
        export_onnx(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "model.onnx")
