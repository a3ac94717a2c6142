"""Batches: a function of seed, epoch and number; the validation part; crops and flips."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rsprune.data import Batch, Part, load, load_digits
from rsprune.data.augment import crop_and_flip, draw
from rsprune.data.images import Raw
from rsprune.data.memory import MemoryPart, in_memory
from rsprune.data.split import split
from rsprune.errors import DataError, InvalidParameterError


def numbered(count: int, augment: str = "none") -> MemoryPart:
    """Images that all look alike and whose label is their number."""
    images = torch.arange(count * 48).view(count, 3, 4, 4).remainder(251).to(torch.uint8)
    return MemoryPart((images, torch.arange(count)), augment=augment)


def same(one: list[Batch], two: list[Batch]) -> bool:
    pairs = zip(one, two, strict=True)
    return all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)


def labels(batches: list[Batch]) -> list[int]:
    return torch.cat([y for _, y in batches]).tolist()


def test_digits_are_standardised_and_divided() -> None:
    """load("digits") gives the tensors of load_digits, with a tenth set apart for validation."""
    data, plain = load("digits"), load_digits()
    assert (data.classes, data.input_shape) == (10, (1, 8, 8))
    assert data.sizes == {"train": 1294, "validation": 143, "test": 360}
    assert all(isinstance(part, Part) for part in (data.train, data.validation, data.test))
    (images, found), *more = data.test.in_order(360)
    assert not more
    assert torch.equal(found, plain.test.labels)
    torch.testing.assert_close(images, plain.test.images, atol=1e-4, rtol=0)


@pytest.mark.parametrize("augment", ["none", "crop", "crop-flip"])
def test_a_resumed_epoch_sees_the_same_bits(augment: str) -> None:
    """Starting at batch k gives what batch k and its successors were, whatever happened before."""
    train = load("digits", augment=augment).train
    whole = list(train.epoch(100, seed=5, epoch=2))
    assert len(whole) == train.steps(100) == 12
    torch.manual_seed(77)
    for start in (0, 1, 7, 11, 12, 30):
        assert same(whole[start:], list(train.epoch(100, seed=5, epoch=2, start=start)))


def test_epochs_and_seeds_differ() -> None:
    """Other epochs and seeds have other orders, also where epoch and seed are exchanged."""
    train = numbered(200)
    orders = {tuple(labels(list(train.epoch(50, seed=s, epoch=e)))) for s in (0, 1) for e in (0, 1)}
    assert len(orders) == 4
    assert all(sorted(order) == list(range(200)) for order in orders)


def test_torchs_random_numbers_are_not_touched() -> None:
    """Batches neither use nor advance torch's global random numbers."""
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    list(load("digits", augment="crop").train.epoch(300, seed=0, epoch=0))
    assert torch.equal(torch.rand(3), expected)


def test_the_incomplete_last_batch_is_left_out_unless_alone() -> None:
    """103 images make ten batches of 10; 7 images make one of 7; in order nothing is left out."""
    assert [len(y) for _, y in numbered(103).epoch(10, seed=0, epoch=0)] == [10] * 10
    assert numbered(103).steps(10) == 10
    assert [len(y) for _, y in numbered(7).epoch(10, seed=0, epoch=0)] == [7]
    assert numbered(7).steps(10) == 1
    assert labels(list(numbered(103).in_order(10))) == list(range(103))


@pytest.mark.parametrize("world", [2, 4])
def test_shards_put_together_are_the_batch(world: int) -> None:
    """The slices of all processes, in turn, are the batches of one process, bit for bit."""
    part = load("digits", augment="crop").train
    alone = list(part.epoch(64, seed=1, epoch=0))
    shards = [list(part.epoch(64, seed=1, epoch=0, shard=(r, world))) for r in range(world)]
    assert {len(y) for shard in shards for _, y in shard} == {64 // world}
    joined = [
        (torch.cat([x for x, _ in turn]), torch.cat([y for _, y in turn]))
        for turn in zip(*shards, strict=True)
    ]
    assert same(alone, joined)
    found = [labels(list(numbered(101).in_order(10, shard=(r, world)))) for r in range(world)]
    assert sorted(itertools.chain(*found)) == list(range(101))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"batch": 0}, "batch"), ({"batch": 2.5}, "batch"), ({"epoch": -1}, "epoch"),
        ({"start": -1}, "start"), ({"shard": (2, 2)}, "shard"), ({"shard": (0, 3)}, "3 shards"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_at_once(wrong: dict, named: str) -> None:
    """Before the first batch is asked for."""
    settings = {"batch": 10, "seed": 0, "epoch": 0} | wrong
    with pytest.raises(InvalidParameterError, match=named):
        numbered(20).epoch(settings.pop("batch"), **settings)


def test_too_few_images_for_all_processes() -> None:
    """A process without any image would wait for ever."""
    with pytest.raises(DataError, match="3 images"):
        numbered(3).epoch(8, seed=0, epoch=0, shard=(0, 4))


# --- the validation part


def test_the_split_is_disjoint_stratified_and_repeatable() -> None:
    """Every image is on one side; each class gives its share; the seed decides."""
    classes = torch.cat([torch.full((n,), c) for c, n in enumerate((500, 300, 150, 50))])
    classes = classes[torch.randperm(1000, generator=torch.Generator().manual_seed(0))]
    train, apart = split(classes, 0.1, seed=3)
    assert sorted([*train.tolist(), *apart.tolist()]) == list(range(1000))
    assert torch.bincount(classes[apart]).tolist() == [50, 30, 15, 5]
    assert torch.equal(apart, split(classes, 0.1, seed=3)[1])
    assert not torch.equal(apart, split(classes, 0.1, seed=4)[1])


def test_a_class_keeps_an_image_for_training() -> None:
    """Rare classes are not emptied by a large validation part."""
    classes = torch.tensor([0] * 20 + [1])
    train, _ = split(classes, 0.9, seed=0)
    assert set(classes[train].tolist()) == {0, 1}


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan"), "0.1", True])
def test_a_validation_part_is_needed(share: object) -> None:
    """No share, or everything, is refused with the reason."""
    with pytest.raises(InvalidParameterError, match=r"'validation'.*Decisions"):
        load("digits", validation=share)  # type: ignore[arg-type]


def test_a_validation_part_without_images_is_refused() -> None:
    """A share so small that no image is taken says so."""
    with pytest.raises(InvalidParameterError, match="one of the 1437"):
        load("digits", validation=0.0001)


def test_validation_and_test_are_never_augmented() -> None:
    """Their images, sorted, are the same in every epoch, while training images are moved."""
    data = load("digits", augment="crop")

    def total(part: Part, epoch: int) -> Tensor:
        (images, _), *_ = part.epoch(5000, seed=0, epoch=epoch)
        return images.double().sum(0)

    for part in (data.validation, data.test):
        torch.testing.assert_close(total(part, 0), total(part, 1))
    assert not torch.allclose(total(data.train, 0), total(data.train, 1), rtol=1e-3)


# --- crops and flips


@pytest.mark.parametrize("kind", ["crop", "crop-flip"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crops_equal_the_ones_cut_one_by_one(kind: str, dtype: torch.dtype) -> None:
    """The whole-batch version gives what a slow loop over images gives, for any shape."""
    numbers = torch.Generator().manual_seed(0)
    images = torch.randint(1, 256, (40, 3, 9, 12), generator=numbers).to(dtype)
    moves = draw(kind, 40, 2, numbers)
    found = crop_and_flip(images, moves, 2)
    for image, (row, column, flip), crop in zip(images, moves.tolist(), found, strict=True):
        expected = F.pad(image, (2, 2, 2, 2))[:, row : row + 9, column : column + 12]
        assert torch.equal(crop, expected.flip(2) if flip else expected)


def test_draws_reach_every_place_and_both_sides() -> None:
    """All 25 places of a crop with two zeros around, half of the images flipped or none."""
    moves = draw("crop-flip", 4000, 2, torch.Generator().manual_seed(0))
    assert len(moves[:, :2].unique(dim=0)) == 25
    assert 0.45 < moves[:, 2].float().mean() < 0.55
    assert not draw("crop", 400, 2, torch.Generator().manual_seed(0))[:, 2].any()


def test_what_comes_in_from_outside_is_a_black_pixel() -> None:
    """Zeros are added before standardisation, as bytes: the same as torchvision's usual order."""
    white = torch.full((20, 3, 8, 8), 255, dtype=torch.uint8)
    raw = Raw((white, torch.arange(20) % 2), (white, torch.arange(20) % 2), 2, "here")
    data = in_memory("x", raw, validation=0.1, seed=0, augment="crop", normalise="imagenet")
    (images, _), *_ = data.train.epoch(18, seed=0, epoch=0)
    low, high = images.amin((0, 2, 3)), images.amax((0, 2, 3))
    torch.testing.assert_close(low, -torch.tensor([0.485, 0.456, 0.406]) / DEVIATION)
    torch.testing.assert_close(high, (1 - torch.tensor([0.485, 0.456, 0.406])) / DEVIATION)


DEVIATION = torch.tensor([0.229, 0.224, 0.225])


def test_bytes_are_held_once() -> None:
    """Training and validation share one tensor of bytes; nothing is copied or made float."""
    data = load("digits")
    assert isinstance(data.train, MemoryPart)
    assert isinstance(data.validation, MemoryPart)
    assert data.train._images is data.validation._images
    assert data.train._images.dtype == torch.uint8


def test_a_batch_never_shares_memory_with_the_data() -> None:
    """Changing a batch in place does not change the data, also for float images."""
    images = torch.rand(20, 1, 4, 4)
    part = MemoryPart((images, torch.arange(20)))
    before = images.clone()
    for batch, _ in itertools.chain(part.in_order(20), part.epoch(20, seed=0, epoch=0)):
        batch.zero_()
    assert torch.equal(images, before)
