"""Which images make up which batch, and the random numbers that belong to it.

Nothing here remembers anything: an order is a function of the seed and the epoch, so a run that
was killed goes on with the same batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rsprune.checks import check_count
from rsprune.errors import DataError, InvalidParameterError


@dataclass(frozen=True)
class Turn:
    """One batch: its number, the images in it over all shards, and which of them are this one's."""

    number: int
    members: Tensor  # (B,), int64
    mine: slice

    @property
    def indices(self) -> Tensor:
        """The images of this shard."""
        return self.members[self.mine]


def random_seed(*key: int) -> int:
    """A seed for ``key``; hashed, so that (0, 1) and (1, 0) have nothing in common."""
    text = ",".join(str(int(number)) for number in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def generator(*key: int) -> torch.Generator:
    """Random numbers that are a function of ``key`` alone."""
    return torch.Generator().manual_seed(random_seed(*key))


def steps(count: int, batch: int) -> int:
    """Batches in an epoch of ``count`` images; a lone incomplete one counts."""
    check_count("Part.steps", "batch", batch, low=1)
    return max(1, count // batch)


def shuffled(
    count: int, batch: int, *, seed: int, epoch: int, start: int, shard: tuple[int, int]
) -> Iterator[Turn]:
    """The batches of an epoch from number ``start`` on; wrong arguments are refused at once."""
    check_count("Part.epoch", "batch", batch, low=1)
    check_count("Part.epoch", "epoch", epoch, low=0)
    check_count("Part.epoch", "start", start, low=0)
    check_shard("Part.epoch", shard)
    world = shard[1]
    if batch % world:
        raise InvalidParameterError(
            "Part.epoch", "batch", f"a multiple of the {world} shards", batch,
            "Shards of unequal size would weigh their images unequally.",
        )  # fmt: skip
    if count < world:
        raise DataError(f"{count} images cannot be shared out among {world} processes.")
    order = torch.randperm(count, generator=generator(seed, epoch))
    return _turns(order, batch, range(start, steps(count, batch)), shard)


def in_order(count: int, batch: int, shard: tuple[int, int]) -> Iterator[Turn]:
    """All images in batches, in their order; wrong arguments are refused at once."""
    check_count("Part.in_order", "batch", batch, low=1)
    check_shard("Part.in_order", shard)
    return _turns(torch.arange(count), batch, range(-(-count // batch)), shard)


def _turns(order: Tensor, batch: int, numbers: range, shard: tuple[int, int]) -> Iterator[Turn]:
    rank, world = shard
    for number in numbers:
        members = order[number * batch : (number + 1) * batch]
        first, last = (len(members) * r // world for r in (rank, rank + 1))
        if first < last:  # a small last batch may leave nothing for this shard
            yield Turn(number, members, slice(first, last))


def check_shard(owner: str, shard: tuple[int, int]) -> None:
    """Accept (rank, world) with 0 <= rank < world."""
    rank, world = shard
    if not 0 <= rank < world:
        raise InvalidParameterError(owner, "shard", "(rank, world) with 0 <= rank < world", shard)
