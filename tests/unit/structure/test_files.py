"""Saving and loading: the same bits again, or a refusal that names the file."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import rsprune
from rsprune.errors import FileFormatError, InvalidParameterError
from tests.surgery import half_drop

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A depthwise layer, a norm, a tied layer, and a width in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 8
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.deep = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.BatchNorm2d(8)
        self.again = self.deep
        self.fc = nn.Linear(8 * 64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(self.norm(self.deep(self.conv(x))).relu())
        return self.fc(x.reshape(-1, self.width, 64).flatten(1))


@pytest.fixture
def slim() -> nn.Module:
    torch.manual_seed(0)
    model = Net().eval()
    graph = rsprune.trace(model, X)
    pruned = rsprune.prune(model, graph, half_drop(graph, 0))
    assert pruned.width == 4
    return pruned


def test_a_loaded_model_has_the_same_bits_and_runs(slim: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "slim.safetensors"
    rsprune.save(slim, path)
    fresh = Net().eval()
    loaded = rsprune.load(fresh, path)
    for name, tensor in slim.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    assert torch.equal(loaded(X), slim(X))
    assert loaded.again is loaded.deep
    assert loaded.conv.out_channels == 4
    assert fresh.conv.weight.shape[0] == 8


def test_the_file_states_its_format_and_holds_no_pickle(slim: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "slim.safetensors"
    rsprune.save(slim, path)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    assert (metadata["format"], metadata["version"]) == ("rsprune", "1")
    assert json.loads(metadata["widths"])[""]["width"] == 4
    assert list(tmp_path.iterdir()) == [path]


def test_texts_about_the_model_are_in_the_header(slim: nn.Module, tmp_path: Path) -> None:
    """They change neither the checksum nor what is loaded; the file's own names are refused."""
    plain, told = tmp_path / "plain.safetensors", tmp_path / "told.safetensors"
    rsprune.save(slim, plain)
    rsprune.save(slim, told, metadata={"test_accuracy": "0.97"})
    with safe_open(plain, "pt") as a, safe_open(told, "pt") as b:
        assert b.metadata() == a.metadata() | {"test_accuracy": "0.97"}
    assert torch.equal(rsprune.load(Net().eval(), told)(X), slim(X))
    for metadata in ({"checksum": "0"}, {"macs": 3}):
        with pytest.raises(InvalidParameterError, match="names other than format, version"):
            rsprune.save(slim, told, metadata=metadata)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_truncated_file_is_named_and_refused(slim: nn.Module, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "slim.safetensors"
    rsprune.save(slim, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FileFormatError, match=r"slim\.safetensors"):
        rsprune.load(Net(), path)


def test_a_changed_byte_is_noticed(slim: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "slim.safetensors"
    rsprune.save(slim, path)
    data = bytearray(path.read_bytes())
    data[-5] ^= 0x10
    path.write_bytes(bytes(data))
    with pytest.raises(FileFormatError, match="checksum"):
        rsprune.load(Net(), path)


def test_what_is_not_ours_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    missing = tmp_path / "none.safetensors"
    with pytest.raises(FileFormatError, match="no file"):
        rsprune.load(Net(), missing)
    foreign = tmp_path / "foreign.safetensors"
    save_file(dict(Net().state_dict(keep_vars=False)) and {"x": X}, foreign)
    with pytest.raises(FileFormatError, match=r"rsprune\.save"):
        rsprune.load(Net(), foreign)
    text = tmp_path / "text.safetensors"
    text.write_text("hello")
    with pytest.raises(FileFormatError, match="damaged"):
        rsprune.load(Net(), text)


def test_another_model_is_refused(slim: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "slim.safetensors"
    rsprune.save(slim, path)
    with pytest.raises(FileFormatError, match="another model"):
        rsprune.load(nn.Sequential(nn.Conv2d(3, 8, 3)), path)

    small = Net()
    small.fc = nn.Linear(8, 5)
    with pytest.raises(FileFormatError, match="full-size"):
        rsprune.load(small, path)


def test_a_changed_header_is_noticed(slim: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "slim.safetensors"
    rsprune.save(slim, path)
    data = path.read_bytes()
    for old, new in ((b'width\\": 4', b'width\\": 5'), (b"widths", b"vidths")):
        changed = data.replace(old, new)
        assert changed != data
        path.write_bytes(changed)
        with pytest.raises(FileFormatError, match="checksum"):
            rsprune.load(Net(), path)


def test_another_version_of_the_format_is_named(
    slim: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "slim.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr("rsprune.structure.files.VERSION", 2)
        rsprune.save(slim, path)
    with pytest.raises(FileFormatError, match=r"has format version 2; .* reads version 1\. Use"):
        rsprune.load(Net(), path)


def test_a_place_that_does_not_exist_is_refused(slim: nn.Module, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "slim.safetensors"):
        with pytest.raises(InvalidParameterError, match="path"):
            rsprune.save(slim, path)


def test_equal_models_make_equal_files(slim: nn.Module, tmp_path: Path) -> None:
    for number in range(5):
        rsprune.save(slim, tmp_path / f"{number}.safetensors")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_a_failed_save_leaves_the_old_file(
    slim: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "slim.safetensors"
    rsprune.save(slim, path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("rsprune.files.save_file", full)
    with pytest.raises(OSError, match="space"):
        rsprune.save(slim, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
