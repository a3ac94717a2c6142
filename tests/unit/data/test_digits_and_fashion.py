"""The loaders give what they promise, and say what is wrong where they cannot."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import torch

from rsprune import DataError
from rsprune.data import load_digits, load_fashion_mnist
from rsprune.models import SmallCNN


def write_idx(path: Path, values: torch.Tensor) -> None:
    header = bytes([0, 0, 8, values.dim()]) + struct.pack(f">{values.dim()}I", *values.shape)
    path.write_bytes(gzip.compress(header + values.to(torch.uint8).numpy().tobytes()))


@pytest.fixture
def fashion(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 30), ("t10k", 20)):
        images = torch.randint(256, (count, 28, 28), generator=generator)
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", torch.arange(count) % 10)
    return tmp_path


def test_digits() -> None:
    data = load_digits()
    assert data.train.images.shape == (1437, 1, 8, 8)
    assert data.test.images.shape == (360, 1, 8, 8)
    assert data.classes == 10
    assert abs(data.train.images.mean().item()) < 1e-5
    assert data.train.images.std().item() == pytest.approx(1)


def test_fashion_mnist_files(fashion: Path) -> None:
    data = load_fashion_mnist(fashion)
    assert data.train.images.shape == (30, 1, 28, 28)
    assert torch.equal(data.test.labels, torch.arange(20) % 10)
    assert SmallCNN()(data.train.images).shape == (30, 10)


def test_missing_data_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="apt-get install dataset-fashion-mnist"):
        load_fashion_mnist(tmp_path)


@pytest.mark.parametrize(
    "damage", ["truncated gzip", "flipped bytes", "truncated data", "not gzip", "not idx"]
)
def test_damaged_data_is_named(fashion: Path, damage: str) -> None:
    path = fashion / "t10k-labels-idx1-ubyte.gz"
    whole = path.read_bytes()
    content = gzip.decompress(whole)
    path.write_bytes(
        {
            "truncated gzip": whole[:-9],
            "flipped bytes": whole[:20] + bytes(b ^ 0xFF for b in whole[20:]),
            "truncated data": gzip.compress(content[:-1]),
            "not gzip": b"<html>moved</html>",
            "not idx": gzip.compress(b"hello, world"),
        }[damage]
    )
    with pytest.raises(DataError, match="t10k-labels"):
        load_fashion_mnist(fashion)


def test_batches_cover_everything_once_and_repeat_by_seed() -> None:
    train = load_digits().train
    one, two = (list(train.batches(100, torch.Generator().manual_seed(3))) for _ in range(2))
    assert sum(len(y) for _, y in one) == len(train)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(one, two, strict=True))
    ordered = torch.cat([y for _, y in train.in_order(100)])
    assert torch.equal(ordered, train.labels)
