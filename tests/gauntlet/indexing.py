"""Cutting and picking: split, chunk, slice, select, index."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.gauntlet.registry import IMAGE, Net, conv, head, net

TWO = {"conv1": conv(3, 8), "left": conv(4, 6), "right": conv(4, 6), "head": head(6)}


@net(IMAGE, "conv1 left right", **TWO)
def chunk(m: Net, x: Tensor) -> Tensor:
    """Halves stay halves: a unit is one channel of each."""
    a, b = m.conv1(x).relu().chunk(2, 1)
    return m.head(m.left(a) + m.right(b))


@net(IMAGE, "conv1 left", conv1=conv(3, 8), left=conv(4, 6), head=head(6))
def chunk_of_which_half_is_used(m: Net, x: Tensor) -> Tensor:
    a, _ = m.conv1(x).relu().chunk(2, 1)
    return m.head(m.left(a))


@net(IMAGE, "conv1 left right", conv1=conv(3, 12), left=conv(3, 6), right=conv(9, 6), head=head(6))
def chunk_used_unequally(m: Net, x: Tensor) -> Tensor:
    a, b, c, d = m.conv1(x).relu().chunk(4, 1)
    return m.head(m.left(c) + m.right(torch.cat([d, a, b], 1)))


@net(IMAGE, either="conv1", conv1=conv(3, 8), left=conv(3, 6), right=conv(2, 6), head=head(6))
def chunk_with_remainder(m: Net, x: Tensor) -> Tensor:
    """Eight in three parts: three, three and two."""
    a, b, c = m.conv1(x).relu().chunk(3, 1)
    return m.head(m.left(a + b) + m.right(c))


@net(IMAGE, "left right", either="conv1", literal=True, **TWO)
def split_by_literal_size(m: Net, x: Tensor) -> Tensor:
    a, b = m.conv1(x).relu().split(4, 1)
    return m.head(m.left(a) + m.right(b))


@net(IMAGE, "left right", either="conv1", literal=True, conv1=conv(3, 8), left=conv(5, 6),
     right=conv(3, 6), head=head(6))  # fmt: skip
def split_by_literal_sizes(m: Net, x: Tensor) -> Tensor:
    a, b = m.conv1(x).relu().split([5, 3], 1)
    return m.head(m.left(a) + m.right(b))


@net(IMAGE, "conv1 left right", half=4, **TWO)
def split_by_attribute(m: Net, x: Tensor) -> Tensor:
    a, b = m.conv1(x).relu().split(m.half, 1)
    return m.head(m.left(a) + m.right(b))


@net(IMAGE, "left right", either="conv1", sizes=(5, 3), conv1=conv(3, 8), left=conv(5, 6),
     right=conv(3, 6), head=head(6), literal=True)  # fmt: skip
def split_by_tuple_attribute(m: Net, x: Tensor) -> Tensor:
    a, b = m.conv1(x).relu().split(m.sizes, 1)
    return m.head(m.left(a) + m.right(b))


@net(IMAGE, "left right", either="conv1", **TWO)
def split_by_half_of_shape(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    a, b = x.split(x.shape[1] // 2, 1)
    return m.head(m.left(a) + m.right(b))


@net(IMAGE, "left right", either="conv1", **TWO)
def tensor_split(m: Net, x: Tensor) -> Tensor:
    a, b = m.conv1(x).relu().tensor_split(2, 1)
    return m.head(m.left(a) + m.right(b))


@net(IMAGE, "conv1 left right", **TWO)
def unbind_of_view(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    b, c, h, w = x.shape
    first, second = x.view(b, 2, c // 2, h, w).unbind(1)
    return m.head(m.left(first) + m.right(second))


@net(IMAGE, "conv1", conv1=conv(3, 8), fc=nn.Linear(8, 5))
def unbind_over_space(m: Net, x: Tensor) -> Tensor:
    rows = m.conv1(x).relu().unbind(2)
    return m.fc((rows[0] * rows[3] + rows[7]).mean(2))


@net(IMAGE, "left", either="conv1", literal=True, conv1=conv(3, 12), left=conv(4, 6), head=head(6))
def slice_by_literals(m: Net, x: Tensor) -> Tensor:
    """Still runs when channels before it are gone, and then picks the wrong ones."""
    return m.head(m.left(m.conv1(x).relu()[:, 4:8]))


@net(IMAGE, "conv2", either="conv1", literal=True, conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def slice_added_by_literals(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    return m.head(m.conv2(torch.cat([x[:, 4:], x[:, :4]], 1)))


@net(IMAGE, "left right", either="conv1", **TWO)
def slice_by_half_of_shape(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    c = x.shape[1]
    return m.head(m.left(x[:, : c // 2]) + m.right(x[:, c // 2 :]))


@net(IMAGE, "left right", either="conv1", literal=True, **TWO)
def slice_every_second_channel(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    return m.head(m.left(x[:, ::2]) + m.right(x[:, 1::2]))


@net(IMAGE, "conv2", either="conv1", literal=True, conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def slice_changed_in_place(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x)
    x[:, :4] += 1
    return m.head(m.conv2(x.relu()))


@net(IMAGE, "conv2", either="conv1", literal=True, conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def slice_moved_in_place(m: Net, x: Tensor) -> Tensor:
    """The temporal shift: some channels come from the left, some from the right, some stay."""
    x = m.conv1(x).relu()
    out = torch.zeros_like(x)
    out[:, :2, :, 1:] = x[:, :2, :, :-1]
    out[:, 2:4, :, :-1] = x[:, 2:4, :, 1:]
    out[:, 4:] = x[:, 4:]
    return m.head(m.conv2(out))


@net(IMAGE, "conv2", either="conv1", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def space_written_in_place(m: Net, x: Tensor) -> Tensor:
    """Zeros between the pixels."""
    x = m.conv1(x).relu()
    b, c, h, w = x.shape
    out = x.new_zeros(b, c, 2 * h, 2 * w)
    out[:, :, ::2, ::2] = x
    return m.head(m.conv2(out))


@net(IMAGE, "conv2", either="conv1", conv1=conv(3, 8), conv2=conv(7, 6), head=head(6))
def differences_of_neighbours(m: Net, x: Tensor) -> Tensor:
    """A dropped channel would change its neighbour's difference."""
    x = m.conv1(x)
    return m.head(m.conv2(x[:, 1:] - x[:, :-1]).relu())


@net(IMAGE, "conv2", either="conv1", literal=True, conv1=conv(3, 8), conv2=conv(1, 6), head=head(6))
def select(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x)[:, 5].unsqueeze(1)).relu())


@net(IMAGE, "conv1", conv1=conv(3, 8), fc=nn.Linear(8, 5))
def select_over_space(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.conv1(x).relu()[:, :, 3, -1])


@net(IMAGE, "conv2", either="conv1", conv1=conv(3, 8), conv2=conv(1, 6), head=head(6))
def select_last(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x)[:, -1:]).relu())


@net(IMAGE, "conv2", either="conv1", literal=True, conv1=conv(3, 8), conv2=conv(4, 6), head=head(6))
def index_by_list(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x)[:, [6, 1, 3, 0]]).relu())


class Permuted(nn.Module):
    """A permutation of the channels kept in a buffer."""

    def __init__(self, select: bool) -> None:
        super().__init__()
        self.select = select
        self.register_buffer("order", torch.tensor([3, 7, 0, 5, 1, 6, 2, 4]))

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.order) if self.select else x[:, self.order]


for title, by_select in (("index_by_buffer", False), ("index_select_by_buffer", True)):

    @net(IMAGE, "conv2", either="conv1", literal=True, name=title, conv1=conv(3, 8),
         mix=Permuted(by_select), conv2=conv(8, 6), head=head(6))  # fmt: skip
    def permuted_by_buffer(m: Net, x: Tensor) -> Tensor:
        return m.head(m.conv2(m.mix(m.conv1(x).relu())))


@net(IMAGE, "conv2", either="conv1", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def roll_over_channels(m: Net, x: Tensor) -> Tensor:
    """When the last channel is gone, another one rolls to the front."""
    return m.head(m.conv2(m.conv1(x).roll(1, 1).relu()))


@net(IMAGE, "conv1 conv2", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def flip_over_channels(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).flip(1).relu()))


@net(IMAGE, "conv2", either="conv1", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def added_to_its_flip(m: Net, x: Tensor) -> Tensor:
    """Unit u lives and dies with unit 7 - u."""
    x = m.conv1(x)
    return m.head(m.conv2((x + x.flip(1)).relu()))


@net(IMAGE, "conv2", either="conv1", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def sort_over_space(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).sort(-1).values.relu()))


@net(IMAGE, "conv2", either="conv1", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def gather_over_space(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x)
    return m.head(m.conv2(x.gather(3, x.argsort(3)).relu()))


@net(IMAGE, "conv1", conv1=conv(3, 8), conv2=conv(32, 6), head=head(6))
def space_to_depth(m: Net, x: Tensor) -> Tensor:
    """YOLO's Focus: four shifted quarters of the image, side by side in the channels."""
    x = m.conv1(x).relu()
    parts = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
    return m.head(m.conv2(torch.cat(parts, 1)))


@net(IMAGE, "conv1", focus=conv(12, 8), conv1=conv(8, 6), head=head(6))
def space_to_depth_of_input(m: Net, x: Tensor) -> Tensor:
    parts = [x[..., i::2, j::2] for i in (0, 1) for j in (0, 1)]
    return m.head(m.conv1(m.focus(torch.cat(parts, 1)).relu()))
