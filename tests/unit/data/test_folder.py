"""Image folders: the usual crops, the same bits for any number of workers, files named."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("PIL")

from PIL import Image

from rsprune.data import Batch, Data, Part, load
from rsprune.data.order import generator
from rsprune.data.pixels import read_square
from rsprune.errors import DataError, InvalidParameterError
from tests.zoo import import_torchvision

pytestmark = [
    # of torch: more workers than cores; of Python 3.12 on: a fork beside torch's threads
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

CLASSES = ("ant", "bee", "cat")


def picture(path: Path, number: int, mode: str = "RGB") -> None:
    """A picture of its own size and colours, in any mode."""
    numbers = np.random.default_rng(number)
    height, width = 30 + number % 7, 26 + number % 5
    coarse = Image.fromarray(numbers.integers(0, 256, (4, 4, 3), dtype=np.uint8))
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse.resize((width, height), Image.Resampling.BICUBIC).convert(mode).save(path)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes with ten pictures each for training and three for testing."""
    root = tmp_path_factory.mktemp("folder")
    for c, name in enumerate(CLASSES):
        for i in range(10):
            picture(root / "train" / name / f"{i}.jpg", 100 * c + i)
        for i in range(3):
            picture(root / "val" / name / f"{i}.JPEG", 100 * c + 50 + i)
    (root / "train" / ".cache").mkdir()
    (root / "train" / "ant" / "notes.txt").write_text("no picture")
    (root / "train" / "ant" / "._0.jpg").write_text("what some systems leave behind")
    return root


def loaded(root: Path, workers: int = 0, **options: object) -> Data:
    return load(f"imagefolder:{root}", size=16, validation=0.2, workers=workers, **options)


def same(one: list[Batch], two: list[Batch]) -> bool:
    pairs = zip(one, two, strict=True)
    return all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)


def test_the_parts(root: Path) -> None:
    """Classes by name; a fifth set apart of each; val is the test part; hidden files are not."""
    data = loaded(root)
    assert data.sizes == {"train": 24, "validation": 6, "test": 9}
    assert (data.classes, data.input_shape, data.source) == (3, (3, 16, 16), str(root))
    assert all(isinstance(part, Part) for part in (data.train, data.validation, data.test))
    (images, labels), *_ = data.test.in_order(100)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert images.shape == (9, 3, 16, 16)
    (_, apart), *_ = data.validation.in_order(100)
    assert apart.tolist() == [0, 0, 1, 1, 2, 2]


def test_workers_change_nothing(root: Path) -> None:
    """The same bits from no worker, one and two, in a fresh epoch and in one continued."""
    alone = list(loaded(root).train.epoch(5, seed=1, epoch=2))
    assert [len(y) for _, y in alone] == [5, 5, 5, 5]
    for workers in (1, 2):
        train = loaded(root, workers).train
        assert same(alone, list(train.epoch(5, seed=1, epoch=2)))
        assert same(alone[3:], list(train.epoch(5, seed=1, epoch=2, start=3)))
    assert list(loaded(root, 2).train.epoch(5, seed=1, epoch=2, start=4)) == []


def test_processes_of_a_launcher_share_the_cores(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has at least one worker, and as many as it was told to have."""
    alone = load(f"imagefolder:{root}").train._workers
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert load(f"imagefolder:{root}").train._workers == 1 <= alone
    assert loaded(root, 3).train._workers == 3


def test_ctrl_c_leaves_the_workers_alone(root: Path) -> None:
    """A terminal sends it to all processes; the one that reads decides what becomes of the rest."""
    batches = loaded(root, 1).train.epoch(5, seed=0, epoch=0)
    next(batches)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid, signal.SIGINT)
    assert len(list(batches)) == 3


def test_epochs_differ_and_shards_make_up_the_batch(root: Path) -> None:
    """Other crops and another order in every epoch; the slices of all processes are the batch."""
    train = loaded(root).train
    one, two = (list(train.epoch(6, seed=0, epoch=e)) for e in (0, 1))
    assert not same(one, two)
    shards = [list(train.epoch(6, seed=0, epoch=0, shard=(rank, 2))) for rank in (0, 1)]
    joined = [
        (torch.cat((a[0], b[0])), torch.cat((a[1], b[1]))) for a, b in zip(*shards, strict=True)
    ]
    assert same(one, joined)


def test_torchs_random_numbers_are_not_touched(root: Path) -> None:
    """Also not by starting workers, for which torch's loader draws a seed."""
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    list(loaded(root, 1).train.epoch(8, seed=0, epoch=0))
    list(loaded(root).test.in_order(8))
    assert torch.equal(torch.rand(3), expected)


def test_start_decodes_nothing_before_it(root: Path, tmp_path: Path) -> None:
    """A broken picture in an early batch does not matter to an epoch continued after it."""
    for path in root.rglob("*.[jJ]*"):
        copy = tmp_path / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not path.name.startswith("."):
            copy.write_bytes(path.read_bytes())
    train = loaded(tmp_path).train
    whole = list(train.epoch(4, seed=0, epoch=0))
    first = train._index[torch.randperm(24, generator=generator(0, 0))[:4]]
    for number in first.tolist():
        train._files[number].write_bytes(b"broken")
    assert same(whole[1:], list(train.epoch(4, seed=0, epoch=0, start=1)))
    with pytest.raises(DataError, match=r"\.jpg is no image"):
        list(train.epoch(4, seed=0, epoch=0))


@pytest.mark.parametrize("size", [16, 32, 100])
def test_evaluation_is_resize_and_centre_crop(root: Path, size: int) -> None:
    """What torchvision's usual evaluation gives, pixel for pixel."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    transforms = import_torchvision().transforms
    usual = transforms.Compose(
        [transforms.Resize(round(size * 256 / 224)), transforms.CenterCrop(size)]
    )
    for path in sorted((root / "train").glob("*/[0-9].jpg")):
        with Image.open(path) as image:
            expected = torch.from_numpy(np.array(usual(image))).permute(2, 0, 1)
        assert torch.equal(read_square(path, size, "none", 0), expected)


def test_training_crops_are_resized_parts(tmp_path: Path) -> None:
    """On a ramp of grey from left to right every crop is a ramp; half of them run backwards."""
    ramp = np.tile(np.arange(0, 250, dtype=np.uint8)[None, :, None], (200, 1, 3))
    path = tmp_path / "ramp.png"
    Image.fromarray(ramp).save(path)
    crops = torch.stack([read_square(path, 8, "crop-flip", seed) for seed in range(200)]).int()
    assert torch.equal(crops, crops[:, :1, :1].expand_as(crops))
    steps = crops[:, 0, 0, -1] - crops[:, 0, 0, 0]
    assert 0.35 < (steps < 0).float().mean() < 0.65
    share = steps.abs() * 8 / 7 / 250  # of the width
    assert share.min() > 0.2
    assert share.max() > 0.9
    plain = torch.stack([read_square(path, 8, "crop", seed) for seed in range(50)]).int()
    assert (plain[:, 0, 0, -1] > plain[:, 0, 0, 0]).all()


def test_a_very_long_image_is_cropped_at_its_centre(tmp_path: Path) -> None:
    """Where no random part has a usual aspect."""
    Image.new("RGB", (1000, 2), (9, 8, 7)).save(tmp_path / "long.png")
    for augment in ("none", "crop"):
        square = read_square(tmp_path / "long.png", 8, augment, 0)
        assert torch.equal(
            square, torch.tensor([9, 8, 7], dtype=torch.uint8).view(3, 1, 1).expand(3, 8, 8)
        )


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "CMYK", "P", "1", "I;16", "P with alpha"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    """Grey, transparent, printed, palettes, one bit and sixteen: a grey stays what it is."""
    path = tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    grey = 255 if mode == "1" else 204  # palettes have it
    if mode == "I;16":
        Image.fromarray(np.full((20, 30), grey * 257, dtype=np.uint16)).save(path)
    elif mode == "P with alpha":
        image = Image.new("RGB", (30, 20), (grey,) * 3).convert("P")
        image.save(path, transparency=bytes(range(256)))
    else:
        image = Image.new("L", (30, 20), grey)
        (image if mode == "L" else image.convert("RGB").convert(mode)).save(path)
    square = read_square(path, 8, "none", 0)
    assert square.shape == (3, 8, 8)
    assert (square.int() - grey).abs().max() <= 1


def test_standardisation(root: Path) -> None:
    """ImageNet's figures by default; pixels from 0 to 1 on request."""
    plain, _ = next(loaded(root, normalise="none").test.in_order(9))
    usual, _ = next(loaded(root).test.in_order(9))
    mean = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
    deviation = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)
    assert 0 <= plain.min() < plain.max() <= 1
    torch.testing.assert_close(usual, (plain - mean) / deviation)


def test_without_augmentation_only_the_order_is_random(root: Path) -> None:
    """augment="none": every training image as in evaluation."""
    train = loaded(root, augment="none").train
    (one, a), (two, b) = (next(train.epoch(24, seed=0, epoch=e)) for e in (0, 1))
    assert a.tolist() != b.tolist()
    torch.testing.assert_close(one.double().sum(0), two.double().sum(0))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_image_is_named(tmp_path: Path, workers: int) -> None:
    """In one line, without the traceback of a worker."""
    for name in ("train/a", "train/b", "val/a"):
        for i in range(5):
            picture(tmp_path / name / f"{i}.png", i)
    broken = tmp_path / "val" / "a" / "3.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(DataError, match=r"val/a/3\.png is no image") as caught:
        list(loaded(tmp_path, workers).test.in_order(2))
    assert "Traceback" not in str(caught.value)


def test_val_and_test_together(tmp_path: Path) -> None:
    """Then val decides, test is reported, and nothing is cut from the training images."""
    for part, count in (("train", 6), ("val", 2), ("test", 3)):
        for i in range(count):
            picture(tmp_path / part / "a" / f"{i}.jpg", i)
    assert loaded(tmp_path).sizes == {"train": 6, "validation": 2, "test": 3}


def test_layouts_that_cannot_be_used(tmp_path: Path) -> None:
    """No folder, no train, no classes, no val, an unknown class, an empty class."""

    def refused(message: str) -> None:
        with pytest.raises(DataError, match=message):
            loaded(tmp_path)

    refused(r"There is no .*train with class directories\. The layout is DIR/train/CLASS/\*\.jpg")
    picture(tmp_path / "train" / "0.jpg", 0)
    refused("train with class directories")
    for i in range(5):
        picture(tmp_path / "train" / "bird" / f"{i}.jpg", i)
    refused("There is no .*val with class directories")
    picture(tmp_path / "val" / "brid" / "0.jpg", 0)
    refused("val/brid is a class that is not in .*train.*Did you mean 'bird'")
    (tmp_path / "val" / "brid").rename(tmp_path / "val" / "bird")
    assert loaded(tmp_path).sizes["test"] == 1
    (tmp_path / "train" / "fish").mkdir()
    refused("train/fish holds no images")


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 1.5}, {"workers": -1}])
def test_wrong_options(root: Path, options: dict) -> None:
    """Sizes and workers are whole numbers in their range."""
    with pytest.raises(InvalidParameterError, match=next(iter(options))):
        load(f"imagefolder:{root}", **options)
