"""rsprune.export: valid files that compute what the model computes, or nothing at all."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import rsprune
from rsprune.errors import ExportError, InvalidParameterError, StorageError, TraceError
from rsprune.exporting import Exported
from rsprune.exporting.parity import compare
from rsprune.models import build

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

X = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))


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


class FixedBatch(nn.Module):
    """Code that holds the size of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(2, 3, 1)


@pytest.fixture(scope="module")
def small() -> nn.Module:
    torch.manual_seed(0)
    return build("small_cnn")


@pytest.fixture(scope="module")
def slim(small: nn.Module) -> nn.Module:
    """Half as wide."""
    return rsprune.compress(small, X, target_macs=0.5)


@pytest.fixture(scope="module")
def exported(small: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    path = tmp_path_factory.mktemp("export") / "small.onnx"
    small.train()
    small.bn1.eval()
    found = rsprune.export(small, X, path, metadata={"test_accuracy": "0.97"})
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


def test_valid_onnx_that_says_what_it_is(small: nn.Module, exported: Exported) -> None:
    """onnx finds nothing wrong; the texts are there, and no path of this machine is."""
    proto = onnx.load(str(exported.path))
    onnx.checker.check_model(proto, full_check=True)
    texts = {entry.key: entry.value for entry in proto.metadata_props}
    assert texts == facts(small) | {"model": "SmallCNN", "test_accuracy": "0.97"}
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert __file__.encode() not in exported.path.read_bytes()
    assert b"small_cnn.py" not in exported.path.read_bytes()


def facts(model: nn.Module) -> dict[str, str]:
    cost = rsprune.profile(model, X)
    counts = {"macs": cost.macs, "weights": cost.weights, "params": cost.params}
    return {"rsprune": rsprune.__version__} | {name: str(n) for name, n in counts.items()}


def test_a_torch_program_with_folded_norms(slim: nn.Module, tmp_path: Path) -> None:
    """A .pt2 file takes any batch, lacks the norms, and carries the same texts."""
    found = rsprune.export(slim, X, tmp_path / "slim.pt2", fold=True, metadata={"recipe": "abc"})
    assert (found.format, found.folded) == ("pt2", 3)
    assert found.difference <= 1e-4
    assert "3 batch norms folded" in str(found)
    extra = {"metadata.json": ""}
    program = torch.export.load(found.path, extra_files=extra)
    assert json.loads(extra["metadata.json"]) == facts(slim) | {
        "model": "SmallCNN",
        "recipe": "abc",
    }
    x = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), slim.eval()(x), rtol=1e-4, atol=1e-5)
    assert not any("bn" in name for name in program.state_dict)
    assert b"small_cnn.py" not in found.path.read_bytes()


def test_a_round_trip_through_save_load_and_export(
    small: nn.Module, slim: nn.Module, tmp_path: Path
) -> None:
    """A safetensors export loads into a fresh full-size model, whose ONNX file is right."""
    found = rsprune.export(slim, X, tmp_path / "slim.safetensors", full=build("small_cnn"))
    assert found.format == "safetensors"
    assert found.difference <= 1e-6  # the same weights, elsewhere in memory
    with safe_open(found.path, "pt") as file:
        texts = file.metadata()
    assert facts(slim).items() <= texts.items()
    again = rsprune.load(build("small_cnn"), found.path)
    assert again.conv1.out_channels == slim.conv1.out_channels < small.conv1.out_channels
    done = rsprune.export(again, X, tmp_path / "slim.onnx")
    x = torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(
            torch.tensor(run(done.path, x)[0]), slim.eval()(x), rtol=1e-4, atol=1e-5
        )


def test_the_format_may_be_given(small: nn.Module, tmp_path: Path) -> None:
    """It is what the name ends in, unless it is said."""
    found = rsprune.export(small, X, tmp_path / "weights.bin", format="safetensors")
    assert found.format == "safetensors"
    with pytest.raises(InvalidParameterError, match=r"ends in \.onnx, \.pt2, \.safetensors"):
        rsprune.export(small, X, tmp_path / "weights.pt")
    with pytest.raises(InvalidParameterError, match="Did you mean 'onnx'"):
        rsprune.export(small, X, tmp_path / "weights.pt", format="onxx")


def test_the_file_is_evaluated_like_the_model(tmp_path: Path) -> None:
    """``evaluate`` sees the outputs in the structure of the model's own; the file says so."""
    model, seen = Pair(), []
    inputs = {"right": torch.randn(2, 5), "left": torch.randn(2, 3)}

    def evaluate(run: Callable[..., Any]) -> float:
        seen.append(run(inputs["left"], inputs["right"]))
        torch.testing.assert_close(run(**inputs), seen[-1])  # names count, not their order
        return 0.5

    found = rsprune.export(model, inputs, tmp_path / "pair.onnx", evaluate=evaluate)
    assert found.difference <= 1e-4
    assert found.accuracy == (0.5, 0.5)
    assert list(seen[0]) == list(seen[1]) == ["sum", "left"]
    torch.testing.assert_close(seen[0], seen[1])
    props = onnx.load(str(found.path)).metadata_props
    assert {"test_accuracy": "0.5"}.items() <= {p.key: p.value for p in props}.items()


def test_infinite_outputs_are_compared(tmp_path: Path) -> None:
    """Scores of classes that are ruled out; the others still count."""

    class Masked(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).masked_fill(torch.tensor([False, True]), -torch.inf)

    model, x = Masked(2, 2), torch.randn(3, 2)
    assert rsprune.export(model, x, tmp_path / "masked.onnx").difference <= 1e-4
    expected = model.eval()(x).detach()
    wrong = compare(model, lambda _: torch.where(expected.isinf(), 0, expected), [((x,), {})])
    assert wrong.difference == torch.inf


def test_existing_files_stay(exported: Exported, small: nn.Module) -> None:
    """Without force, a file that is there is refused at once and left as it is."""
    before = exported.path.read_bytes()
    with pytest.raises(ExportError, match="--force"):
        rsprune.export(small, X, exported.path)
    assert exported.path.read_bytes() == before


def test_force_replaces(tmp_path: Path) -> None:
    """With force, the new model takes the old file's place."""
    path = tmp_path / "model.pt2"
    path.write_text("old")
    rsprune.export(nn.Linear(2, 2), torch.randn(2, 2), path, force=True)
    assert torch.export.load(path).module()(torch.zeros(5, 2)).shape == (5, 2)


@pytest.mark.parametrize(
    ("ending", "model", "said"),
    [
        ("onnx", Zeta(), "zeta"),
        ("pt2", Noisy(), "differ by"),
        ("pt2", FixedBatch(), "size of the batch, 2,"),
    ],
    ids=["operator", "parity", "batch"],
)
def test_nothing_is_written(
    ending: str, model: nn.Module, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A model that cannot be exported, or would compute something else, leaves no file."""
    with pytest.raises(ExportError, match=said) as caught:
        rsprune.export(model, torch.rand(2, 3) + 1.5, tmp_path / f"model.{ending}")
    assert str(caught.value).endswith("Nothing was written.")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("a.safetensors", {"fold": True}, "rsprune.load fills the model's own class"),
        ("a.safetensors", {"int8": [X]}, "left out unless the format is onnx"),
        ("a.pt2", {"int8": [X]}, "left out unless the format is onnx"),
        ("a.onnx", {"full": nn.Linear(2, 2)}, "left out unless the format is safetensors"),
        ("a.onnx", {"int8": True}, "must be batches of inputs"),
        ("a.onnx", {"int8": [(X, X)]}, "pass the images alone"),
        ("a.onnx", {"metadata": {"macs": 3}}, "must be texts by name"),
        ("a.safetensors", {"metadata": {"widths": "3"}}, "names other than format, version"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, options: dict[str, Any], said: str, small: nn.Module, tmp_path: Path
) -> None:
    with pytest.raises(InvalidParameterError, match=said):
        rsprune.export(small, X, tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("inputs", "said"),
    [(torch.zeros(0, 2), "at least one input"), ((X, X), "pass the images alone")],
    ids=["empty", "labels"],
)
def test_inputs_that_are_none(inputs: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match=said):
        rsprune.export(nn.Linear(2, 2), inputs, tmp_path / "a.onnx")


@pytest.mark.parametrize("ending", ["onnx", "safetensors"])
def test_a_model_that_raises(ending: str, tmp_path: Path) -> None:
    """Is named with the shape of its inputs, and without talk of exporters."""
    model = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(TraceError, match=r"inputs of shape \(1, 2\), in '0' \(Linear\)"):
        rsprune.export(model, torch.zeros(1, 2), tmp_path / f"model.{ending}")


@pytest.mark.parametrize(
    ("path", "said"),
    [("", "the directory .* Name a file"), ("missing/model.onnx", "that exists")],
    ids=["directory", "no directory"],
)
def test_unusable_paths(path: str, said: str, tmp_path: Path) -> None:
    """Refused before the work begins."""
    with pytest.raises(InvalidParameterError, match=said):
        rsprune.export(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / path, format="onnx")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no directory that refuses everyone")
@pytest.mark.parametrize("ending", ["onnx", "pt2", "safetensors"])
def test_a_read_only_directory_is_refused_before_the_work(ending: str) -> None:
    """The error names the file, which not even root could write; the model is not run."""

    class Untouched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError(x)

    with pytest.raises(StorageError, match=rf"/proc/model\.{ending}"):
        rsprune.export(Untouched(2, 2), torch.zeros(1, 2), f"/proc/model.{ending}")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_its_packages(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the package and the extra that brings it; other formats do without."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExportError, match=rf'\({package}\).*pip install "rsprune\[export\]"'):
        rsprune.export(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "model.onnx")
    rsprune.export(nn.Linear(2, 2), torch.zeros(1, 2), tmp_path / "model.pt2")
