"""CIFAR-10: three file formats give the same tensors; damaged files are named; the real data."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rsprune.data import cache_directory, load
from rsprune.data.cifar10 import is_there, read_cifar10
from rsprune.errors import DataError

Batches = dict[str, tuple[np.ndarray, np.ndarray]]
NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


@pytest.fixture(scope="module")
def batches() -> Batches:
    """Six batches of twenty images."""
    numbers = np.random.default_rng(0)
    return {
        name: (numbers.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8), np.arange(20) % 10)
        for name in NAMES
    }


def write_python(folder: Path, batches: Batches, protocol: int = 2, keys: type = str) -> None:
    for name, (images, labels) in batches.items():
        content = {"data": images.reshape(-1, 3072), "labels": labels.tolist(), "batch_label": name}
        if keys is bytes:
            content = {key.encode(): value for key, value in content.items()}
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))


def write_binary(folder: Path, batches: Batches) -> None:
    for name, (images, labels) in batches.items():
        records = np.concatenate([labels[:, None].astype(np.uint8), images.reshape(-1, 3072)], 1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def write_npz(path: Path, batches: Batches, keras: bool = False) -> None:
    train = [np.concatenate([batches[name][i] for name in NAMES[:5]]) for i in (0, 1)]
    test = list(batches["test_batch"])
    names = ("train_images", "train_labels", "test_images", "test_labels")
    if keras:
        names = ("x_train", "y_train", "x_test", "y_test")
        train, test = ([x.transpose(0, 2, 3, 1), y[:, None]] for x, y in (train, test))
    np.savez(path, **dict(zip(names, (*train, *test), strict=True)))


def made(folder: Path, batches: Batches, kind: str) -> Path:
    """The batches as files of one kind; what to give to load."""
    place = folder / kind
    place.mkdir()
    if kind == "npz":
        write_npz(place / "cifar10.npz", batches)
    elif kind == "keras":
        write_npz(place / "other.npz", batches, keras=True)
        return place / "other.npz"
    elif kind == "binary":
        (place / "cifar-10-batches-bin").mkdir()
        write_binary(place / "cifar-10-batches-bin", batches)
    else:
        protocol = int(kind.removeprefix("python"))
        write_python(place, batches, protocol, keys=bytes if protocol == 2 else str)
    return place


def test_all_formats_give_the_same_tensors(tmp_path: Path, batches: Batches) -> None:
    """Python batches (of any pickle protocol, str or bytes), binary batches, npz, Keras's npz."""
    kinds = ("python2", "python4", "python5", "binary", "npz", "keras")
    found = [read_cifar10(made(tmp_path, batches, kind)) for kind in kinds]
    expected = torch.from_numpy(np.concatenate([batches[name][0] for name in NAMES[:5]]))
    for raw in found:
        assert torch.equal(raw.train[0], expected)
        assert torch.equal(raw.train[1], torch.arange(20).repeat(5) % 10)
        assert torch.equal(raw.test[0], torch.from_numpy(batches["test_batch"][0]))
        assert (raw.train[1].dtype, raw.test[1].dtype) == (torch.int64, torch.int64)


def test_a_pickle_of_python_2(tmp_path: Path, batches: Batches) -> None:
    """The release's pickles hold byte strings where Python 3 would write bytes, or text."""
    shutil.copytree(made(tmp_path, batches, "python4"), tmp_path / "old")
    # {'data': array of six zeros ..., 'labels': [3]} as Python 2 wrote it, by opcodes
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    state = (
        b"(I1\n(I1\nI3072\ntcnumpy\ndtype\n(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\n"
    )
    pixels = bytes([7, 200]) * 1536
    data = b"T" + len(pixels).to_bytes(4, "little") + pixels
    content = b"(dS'data'\n" + array + state + data + b"tbsS'labels'\n(lI3\nas."
    (tmp_path / "old" / "test_batch").write_bytes(content)
    images, labels = read_cifar10(tmp_path / "old").test
    assert images.flatten().tolist() == [7, 200] * 1536
    assert labels.tolist() == [3]


def test_usual_standardisation_and_imagenets(tmp_path: Path, batches: Batches) -> None:
    """By default CIFAR-10's mean and deviation; ImageNet's on request; or only 0 to 1."""
    place = made(tmp_path, batches, "npz")
    pixels = torch.from_numpy(batches["test_batch"][0]) / 255
    for normalise, mean, deviation in (
        ("auto", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("none", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    ):
        data = load("cifar10", directory=place, normalise=normalise)
        images, _ = next(data.test.in_order(20))
        centre, width = (torch.tensor(x).view(3, 1, 1) for x in (mean, deviation))
        torch.testing.assert_close(images, (pixels - centre) / width)


def test_training_images_are_cropped_and_flipped(tmp_path: Path, batches: Batches) -> None:
    """By default each is a crop with four zeros around, some flipped; not with augment none."""
    place = made(tmp_path, batches, "npz")
    train, _ = read_cifar10(place).train
    padded = torch.nn.functional.pad(train, (4, 4, 4, 4))
    (images, _), *_ = load("cifar10", directory=place, normalise="none").train.epoch(
        90, seed=0, epoch=0
    )
    crops = (images * 255).round().to(torch.uint8)
    candidates = {
        window.contiguous().numpy().tobytes()
        for row in range(9)
        for column in range(9)
        for image in padded[:, :, row : row + 32, column : column + 32]
        for window in (image, image.flip(2))
    }
    assert all(crop.contiguous().numpy().tobytes() in candidates for crop in crops)
    untouched = {image.numpy().tobytes() for image in train}
    moved = [crop.contiguous().numpy().tobytes() not in untouched for crop in crops]
    assert sum(moved) > 80
    (plain, _), *_ = load("cifar10", directory=place, normalise="none", augment="none").train.epoch(
        90, seed=0, epoch=0
    )
    assert all(
        (x * 255).round().to(torch.uint8).contiguous().numpy().tobytes() in untouched for x in plain
    )


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch was-here",)


def test_a_pickle_that_would_run_something_is_refused(
    tmp_path: Path, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, with what it asked for, and nothing was run."""
    monkeypatch.chdir(tmp_path)
    write_python(tmp_path, batches)
    (tmp_path / "data_batch_3").write_bytes(pickle.dumps({"data": Evil(), "labels": []}))
    with pytest.raises(DataError, match=r"data_batch_3.*asks for \w+\.system"):
        read_cifar10(tmp_path)
    assert not (tmp_path / "was-here").exists()


@pytest.mark.parametrize(
    ("kind", "file", "damage", "message"),
    [
        ("python4", "data_batch_4", None, "incomplete.*data_batch_4 is missing"),
        ("python4", "test_batch", b"", "test_batch cannot be read"),
        ("python4", "data_batch_2", b"<html>moved</html>", "data_batch_2 cannot be read"),
        ("python4", "data_batch_2", pickle.dumps([1, 2]), "data_batch_2 cannot be read"),
        ("python4", "data_batch_2", pickle.dumps({"data": [1, 2]}), "data_batch_2 cannot be read"),
        ("binary", "cifar-10-batches-bin/test_batch.bin", None, "test_batch.bin is missing"),
        ("binary", "cifar-10-batches-bin/test_batch.bin", b"1234", "4 bytes.*records of 3073"),
        ("npz", "cifar10.npz", b"PK broken", "cifar10.npz cannot be read"),
        ("npz", "cifar10.npz", b"", "cifar10.npz cannot be read"),
    ],
)
def test_damaged_files_are_named(
    tmp_path: Path, batches: Batches, kind: str, file: str, damage: bytes | None, message: str
) -> None:
    """Which file, what is wrong with it, and how to get the data again."""
    place = made(tmp_path, batches, kind)
    (place / file).unlink()
    if damage is not None:
        (place / file).write_bytes(damage)
    with pytest.raises(DataError, match=f"{message}.*rsprune data cifar10"):
        read_cifar10(place)


def test_a_flipped_byte_in_the_npz_is_found(tmp_path: Path, batches: Batches) -> None:
    """The archive's own sums guard the fetched file."""
    path = made(tmp_path, batches, "npz") / "cifar10.npz"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="CRC"):
        read_cifar10(path)


def test_wrong_arrays_in_an_npz(tmp_path: Path, batches: Batches) -> None:
    """Other names, floats, other shapes, pickled objects, labels out of range."""
    images, labels = batches["test_batch"]
    path = tmp_path / "x.npz"
    for arrays, message in (
        ({"images": images}, "it has to hold train_images"),
        ({"train_images": images / 255}, "float64, not uint8"),
        ({"train_images": images[:, :, 2:]}, r"\(20, 3, 30, 32\)"),
        ({"train_labels": labels.astype(object)}, "allow_pickle=False"),
        ({"train_labels": labels * 1.0}, "float64, not whole numbers"),
        ({"test_labels": labels + 1}, "10 classes 0 to 9: the first is 10, of image 9"),
        ({"test_labels": labels[1:]}, "20 images but 19 labels in the test part"),
    ):
        whole = {
            "train_images": images, "train_labels": labels,
            "test_images": images, "test_labels": labels,
        }  # fmt: skip
        np.savez(path, **(arrays if "images" in arrays else whole | arrays))
        with pytest.raises(DataError, match=message):
            load("cifar10", directory=path)


def test_the_real_data() -> None:
    """50,000 and 10,000 images, 5,000 and 1,000 of every class, and the known channel means."""
    if not is_there(cache_directory()):
        pytest.skip("CIFAR-10 is not here; `rsprune data cifar10` fetches it")
    raw = read_cifar10()
    (images, labels), (tests, others) = raw.train, raw.test
    assert images.shape == (50000, 3, 32, 32)
    assert tests.shape == (10000, 3, 32, 32)
    assert labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert labels.bincount().tolist() == [5000] * 10
    assert others.bincount().tolist() == [1000] * 10
    means = torch.stack([images[:, c].sum(dtype=torch.int64) for c in range(3)])
    torch.testing.assert_close(
        means / (50000 * 1024 * 255), torch.tensor([0.49140, 0.48216, 0.44653]), atol=1e-5, rtol=0
    )
