"""load(): names, options, factories; what is wrong is named, with a remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from rsprune.data import Data, load
from rsprune.errors import DataError, InvalidParameterError

MODULE = """
import numpy as np
import torch
from rsprune.data import Data, Images, ImageSplit, load

def pair(count=40, dtype=torch.uint8, classes=4, side=8):
    x = torch.randint(0, 256, (count, 3, side, side), generator=torch.Generator().manual_seed(0))
    return x.to(dtype), torch.arange(count) % classes

def plain(): return pair(), pair(20)
def arrays(): return tuple((x.numpy(), y.numpy().astype(np.int32)) for x, y in plain())
def floats():
    (x, y), (a, b) = plain()
    return (x / 255, y), (a / 255, b)
def as_split(): return ImageSplit(Images(*floats()[0]), Images(*floats()[1]), 6)
def whole(): return load("digits", validation=0.2)

def with_labels(change):
    (x, y), test = plain()
    return (x, change(y)), test
def negative(): return with_labels(lambda y: y - 1)
def high():
    train, (x, y) = plain()
    return train, (x, y + 3)
def float_labels(): return with_labels(lambda y: y.float())
def two_dims(): return with_labels(lambda y: y[:, None])
def fewer(): return with_labels(lambda y: y[:-1])
def nan():
    (x, y), test = floats()
    x[7, 0, 0, 0] = float("nan")
    return (x, y), test
def whole_numbers(): return tuple((x.int(), y) for x, y in plain())
def empty(): return pair(0), pair()
def flat(): return tuple((x.flatten(1), y) for x, y in plain())
def other_shape(): return pair(), pair(side=9)
def other_dtype(): return pair(), floats()[1]
def few_classes():
    train, test = (Images(*part) for part in floats())
    return ImageSplit(train, test, 3)
def lying():
    data = whole()
    return Data("mine", 10, (3, 8, 8), data.train, data.validation, data.test)
def too_few():
    data = whole()
    return Data("mine", 2, (1, 8, 8), data.train, data.validation, data.test)
def not_parts():
    data = whole()
    return Data("mine", 10, (1, 8, 8), data.train, [1, 2], data.test)

def three(): return 1, 2, 3
def ragged(): return ([[1, 2], [3]], [0, 1]), pair()
def crash(): raise KeyError("no such file")
number = 5
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's."""
    name = f"mine_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize("factory", ["plain", "arrays"])
def test_a_factory_of_tensors_or_arrays(mine: str, factory: str) -> None:
    """Bytes are standardised channel by channel, and a validation part is cut from them."""
    data = load(f"{mine}:{factory}", validation=0.25, augment="crop-flip")
    assert data.sizes == {"train": 30, "validation": 10, "test": 20}
    assert (data.classes, data.input_shape) == (4, (3, 8, 8))
    parts = [next(part.in_order(100))[0] for part in (data.train, data.validation)]
    everything = torch.cat(parts)
    torch.testing.assert_close(everything.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        everything.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0
    )


def test_a_factory_of_floats_is_taken_as_it_is(mine: str) -> None:
    """Floats are the user's own scale; ImageNet's figures can be asked for."""
    data = load(f"{mine}:as_split")
    assert data.classes == 6
    images, _ = next(data.test.in_order(100))
    expected, _ = sys.modules[mine].floats()[1]
    assert torch.equal(images, expected)
    scaled, _ = next(load(f"{mine}:as_split", normalise="imagenet").test.in_order(100))
    mean, deviation = (torch.tensor(x).view(3, 1, 1) for x in IMAGENET)
    torch.testing.assert_close(scaled, (expected - mean) / deviation)


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_pixels_without_normalisation_are_between_zero_and_one(mine: str) -> None:
    """normalise="none": bytes by 255, the digits by their 16."""
    for name in (f"{mine}:plain", "digits"):
        images, _ = next(load(name, normalise="none").test.in_order(1000))
        assert images.min() == 0
        assert images.max() == 1


def test_a_factory_of_data_is_used_as_it_is(mine: str) -> None:
    """Its own split, its own augmentation: asking for another is refused."""
    data = load(f"{mine}:whole")
    assert isinstance(data, Data)
    assert data.sizes["validation"] == 287
    with pytest.raises(InvalidParameterError, match=r"'augment'.*of its own making"):
        load(f"{mine}:whole", augment="crop")


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("negative", r"train part.*classes 0 to 2: the first is -1, of image 0"),
        ("high", r"test part.*classes 0 to 3: the first is 4, of image 1"),
        ("float_labels", r"train part.*\(40,\) float32; needed is one int64"),
        ("two_dims", r"train part.*\(40, 1\) int64"),
        ("fewer", "40 images but 39 labels in the train part"),
        ("nan", "1 images of the train part.*NaN.*number 7"),
        ("whole_numbers", r"train part.*int32; needed are bytes \(uint8\) or floats"),
        ("empty", r"train part.*\(0, 3, 8, 8\).*at least one image"),
        ("flat", r"train part.*\(40, 192\) uint8.*\(N, C, H, W\)"),
        ("other_shape", r"train is \(40, 3, 8, 8\) uint8, test is \(40, 3, 9, 9\)"),
        ("other_dtype", "train is .* uint8, test is .* float32"),
        ("few_classes", r"train part.*3 classes 0 to 2: the first is 3"),
        ("lying", r"train part.*\(1, 8, 8\) float32, but its input_shape is \(3, 8, 8\)"),
        ("too_few", "train part.*2 classes 0 to 1"),
        ("not_parts", "validation part.*no rsprune.data.Part"),
        ("ragged", "must return a Data, an ImageSplit"),
        ("crash", "raised KeyError: 'no such file'"),
    ],
)
def test_wrong_data_is_named(mine: str, factory: str, message: str) -> None:
    """Which part, what is wrong with it, and where."""
    with pytest.raises(DataError, match=message):
        load(f"{mine}:{factory}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digit", "Did you mean 'digits'"),
        ("cifar-10", "Did you mean 'cifar10'"),
        ("imagefolder", "Did you mean 'imagefolder:DIR'"),
        ("imagefolder:", "imagefolder:DIR"),
        (":x", "package.module:factory"),
        ("no_such_package.data:make", "No module named 'no_such_package'"),
        ("{mine}:plane", "Did you mean 'plain'"),
        ("{mine}:number", "can be called"),
        ("{mine}:three", "which returns tuple"),
    ],
)
def test_wrong_names(mine: str, name: str, message: str) -> None:
    """With the names there are, and the nearest."""
    with pytest.raises(InvalidParameterError, match=message):
        load(name.format(mine=mine))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"augment": "flip"}, "'augment'.*'crop-flip'"),
        ({"normalise": "imagenets"}, "Did you mean 'imagenet'"),
        ({"normalise": "imagenet"}, "'auto' or 'none' for digits.*three colours"),
        ({"size": 32}, "'size'.*left out for digits.*imagefolder:DIR"),
        ({"workers": 2}, "'workers'.*left out for digits"),
        ({"directory": "/data"}, "'directory'.*left out for digits.*cifar10"),
        ({"seed": -1}, "'seed'"),
        ({"seed": 1.5}, "'seed'"),
    ],
)
def test_wrong_options(options: dict, message: str) -> None:
    """Every option is checked, and one that would be ignored is refused."""
    with pytest.raises(InvalidParameterError, match=message):
        load("digits", **options)


def test_missing_data_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For data in their usual places as for a directory that was given."""
    monkeypatch.setenv("RSPRUNE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=f"{tmp_path}.*rsprune data cifar10.*--loading.directory"):
        load("cifar10")
    with pytest.raises(DataError, match="apt-get install dataset-fashion-mnist"):
        load("fashion-mnist", directory=tmp_path)
