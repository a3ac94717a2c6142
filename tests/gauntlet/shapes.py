"""Joining and reshaping: cat, stack, view, permute, shuffle, repeat."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gauntlet.registry import IMAGE, Net, conv, head, net

TWO = {"a": conv(3, 8), "b": conv(3, 6)}


@net(IMAGE, "a b mix", **TWO, mix=conv(14, 6), head=head(6))
def cat(m: Net, x: Tensor) -> Tensor:
    return m.head(m.mix(torch.cat([m.a(x), m.b(x)], 1).relu()))


@net(IMAGE, "a b", **TWO, norm=nn.BatchNorm2d(22), mix=conv(22, 6), head=head(6))
def cat_of_repeated_parts(m: Net, x: Tensor) -> Tensor:
    a, b = m.a(x), m.b(x)
    return m.head(m.mix(m.norm(torch.cat([a, b, a.tanh()], 1)).relu()))


@net(IMAGE, "a", a=conv(3, 8), mix=conv(11, 6), head=head(6))
def cat_with_input(m: Net, x: Tensor) -> Tensor:
    return m.head(m.mix(torch.cat([x, m.a(x)], 1).relu()))


@net(IMAGE, "a", a=conv(3, 8), mix=conv(10, 6), head=head(6))
def cat_with_coordinates(m: Net, x: Tensor) -> Tensor:
    """CoordConv: two constant channels that no parameter made."""
    x = m.a(x)
    line = torch.linspace(-1, 1, 8, dtype=x.dtype)
    grid = torch.stack(torch.meshgrid(line, line, indexing="ij")).expand(len(x), 2, 8, 8)
    return m.head(m.mix(torch.cat([x, grid], 1).relu()))


@net(IMAGE, "a b", **TWO, fc=nn.Linear(14 * 16, 5))
def cat_flatten_linear(m: Net, x: Tensor) -> Tensor:
    parts = [F.max_pool2d(m.a(x), 2), F.max_pool2d(m.b(x), 2)]
    return m.fc(torch.cat(parts, 1).flatten(1))


@net(IMAGE, "a b", **TWO, fc=nn.Linear(8 * 64 + 6 * 16, 5))
def flatten_cat_linear(m: Net, x: Tensor) -> Tensor:
    parts = [m.a(x).flatten(1), F.max_pool2d(m.b(x), 2).flatten(1)]
    return m.fc(torch.cat(parts, 1))


@net(IMAGE, "a b", a=conv(3, 8), b=conv(3, 8), mix=conv(8, 6), head=head(6))
def cat_over_space(m: Net, x: Tensor) -> Tensor:
    return m.head(m.mix(torch.cat([m.a(x), m.b(x)], 3).relu()))


@net(IMAGE, "a b", a=conv(3, 8), b=conv(3, 8), mix=conv(8, 6), head=head(6))
def stack_and_sum(m: Net, x: Tensor) -> Tensor:
    return m.head(m.mix(torch.stack([m.a(x), m.b(x)], 0).sum(0).relu()))


@net(IMAGE, "a b", a=conv(3, 8), b=conv(3, 8), mix=conv(16, 6), head=head(6))
def stack_and_interleave(m: Net, x: Tensor) -> Tensor:
    return m.head(m.mix(torch.stack([m.a(x), m.b(x)], 2).flatten(1, 2).relu()))


@net(IMAGE, "a b", a=conv(3, 4), b=conv(3, 4), grouped=conv(8, 8, groups=2), head=head(8))
def cat_into_grouped(m: Net, x: Tensor) -> Tensor:
    """Each part is one group: they lose channels together."""
    return m.head(m.grouped(torch.cat([m.a(x), m.b(x)], 1).relu()))


@net(IMAGE, "a b", a=conv(3, 4), b=conv(3, 4), grouped=conv(8, 8, groups=4), head=head(8))
def cat_into_more_groups(m: Net, x: Tensor) -> Tensor:
    return m.head(m.grouped(torch.cat([m.a(x), m.b(x)], 1).relu()))


@net(IMAGE, "a b", a=conv(3, 6), b=conv(3, 2), grouped=conv(8, 8, groups=2), head=head(8))
def cat_across_groups(m: Net, x: Tensor) -> Tensor:
    """The second group holds two channels of one part and two of the other."""
    return m.head(m.grouped(torch.cat([m.a(x), m.b(x)], 1).relu()))


@net(IMAGE, "a b", a=conv(3, 6), b=conv(3, 2), deep=conv(8, 8, groups=8), head=head(8))
def cat_into_depthwise(m: Net, x: Tensor) -> Tensor:
    return m.head(m.deep(torch.cat([m.a(x), m.b(x)], 1).relu()))


@net(IMAGE, "a", a=conv(3, 8), mix=conv(16, 6), head=head(6))
def concatenated_relu(m: Net, x: Tensor) -> Tensor:
    x = m.a(x)
    return m.head(m.mix(torch.cat([x, -x], 1).relu()))


@net(IMAGE, "conv1", conv1=conv(3, 8), fc=nn.Linear(8 * 64, 5))
def flatten_linear(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.conv1(x).relu().flatten(1))


@net(IMAGE, "conv1 fc1", conv1=conv(3, 8), fc1=nn.Linear(8 * 64, 6), fc=nn.Linear(6, 5))
def view_by_batch(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    return m.fc(m.fc1(x.view(x.size(0), -1)).relu())


@net(IMAGE, "conv1", conv1=conv(3, 8), fc=nn.Linear(8 * 64, 5))
def flatten_channels_last(m: Net, x: Tensor) -> Tensor:
    """Pixel by pixel: the channel is the fast index of the linear layer's inputs."""
    return m.fc(m.conv1(x).relu().permute(0, 2, 3, 1).reshape(len(x), -1))


@net(IMAGE, "conv1", conv1=conv(3, 8), norm=nn.BatchNorm1d(8 * 4), fc=nn.Linear(8 * 4, 5))
def flatten_batch_norm(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.norm(F.max_pool2d(m.conv1(x).relu(), 4).flatten(1)))


@net((2, 7), either="fc1", literal=True, fc1=nn.Linear(7, 8 * 4), conv=conv(8, 6), head=head(6))
def unflatten_by_literals(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv(m.fc1(x).relu().unflatten(1, (8, 2, 2))))


@net((2, 7), "fc1", fc1=nn.Linear(7, 8 * 4), conv=conv(8, 6), head=head(6))
def unflatten_by_minus_one(m: Net, x: Tensor) -> Tensor:
    """A generator: each unit is four rows of the linear layer."""
    return m.head(m.conv(m.fc1(x).relu().unflatten(1, (-1, 2, 2))))


@net((2, 7), "fc1", fc1=nn.Linear(7, 8 * 4), width=8, conv=conv(8, 6), head=head(6))
def unflatten_by_attribute(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv(m.fc1(x).relu().view(-1, m.width, 2, 2)))


@net(IMAGE, "conv1 fc1", conv1=conv(3, 8), fc1=nn.Linear(8, 6), fc=nn.Linear(6, 5))
def to_tokens(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.fc1(m.conv1(x).relu().flatten(2).transpose(1, 2)).relu().mean(1))


@net(IMAGE, "conv1 fc1 conv2", conv1=conv(3, 8), fc1=nn.Linear(8, 6), conv2=conv(6, 4),
     head=head(4))  # fmt: skip
def to_tokens_and_back(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    b, _, h, w = x.shape
    x = m.fc1(x.flatten(2).transpose(1, 2)).relu()
    return m.head(m.conv2(x.transpose(1, 2).reshape(b, -1, h, w)))


@net(IMAGE, "conv1 conv2", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def movedim_and_back(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).movedim(1, -1).relu().movedim(-1, 1).contiguous()))


@net(IMAGE, "conv1", conv1=conv(3, 8), fc=nn.Linear(8, 5))
def squeeze(m: Net, x: Tensor) -> Tensor:
    return m.fc(F.adaptive_avg_pool2d(m.conv1(x).relu(), 1).squeeze(-1).squeeze(-1))


@net(IMAGE, "conv1", conv1=conv(3, 8), fc=nn.Linear(8, 5))
def index_with_none(m: Net, x: Tensor) -> Tensor:
    pooled = F.adaptive_avg_pool2d(m.conv1(x).relu(), 1).squeeze((2, 3))
    return m.fc(pooled[:, None]).squeeze(1)


@net(IMAGE, "conv1 fc1", conv1=conv(3, 8), fc1=nn.Linear(8, 8), conv2=conv(8, 6), head=head(6))
def expand(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    context = m.fc1(x.mean((2, 3)))[:, :, None, None].expand(-1, -1, 8, 8)
    return m.head(m.conv2(x + context))


@net(IMAGE, "conv1 fc1", conv1=conv(3, 8), fc1=nn.Linear(8, 8), conv2=conv(16, 6), head=head(6))
def expand_as_and_cat(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    context = m.fc1(x.mean((2, 3)))[:, :, None, None].expand_as(x)
    return m.head(m.conv2(torch.cat([x, context], 1)))


@net(IMAGE, "conv2", literal=True, conv1=conv(3, 1), conv2=conv(8, 6), head=head(6))
def one_channel_expanded(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).expand(-1, 8, -1, -1)))


@net(IMAGE, "conv1", conv1=conv(3, 8), conv2=conv(16, 6), head=head(6))
def repeat(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).relu().repeat(1, 2, 1, 1)))


@net(IMAGE, "conv2", either="conv1", conv1=conv(3, 8), conv2=conv(16, 6), head=head(6))
def repeat_interleave(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).relu().repeat_interleave(2, 1)).relu())


@net(IMAGE, "conv1 conv2", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def repeat_over_space(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).relu().repeat(1, 1, 2, 1).repeat_interleave(2, 3)))


@net(IMAGE, "conv1 conv2", conv1=conv(3, 16), up=nn.PixelShuffle(2), conv2=conv(4, 6), head=head(6))
def pixel_shuffle(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.up(m.conv1(x).relu())).relu())


@net(IMAGE, "conv1", conv1=conv(3, 8), down=nn.PixelUnshuffle(2), conv2=conv(32, 6), head=head(6))
def pixel_unshuffle(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.down(m.conv1(x).relu())))


@net(IMAGE, "conv1 grouped", conv1=conv(3, 32), up=nn.PixelShuffle(2), grouped=conv(8, 8, groups=2),
     conv2=conv(8, 6), head=head(6))  # fmt: skip
def pixel_shuffle_into_grouped(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.grouped(m.up(m.conv1(x).relu())).relu()))


@net(IMAGE, "conv1", conv1=conv(3, 16), conv2=conv(4, 6), head=head(6))
def depth_to_space_by_hand(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    b, c, h, w = x.shape
    x = x.view(b, 2, 2, c // 4, h, w).permute(0, 3, 4, 1, 5, 2).reshape(b, c // 4, 2 * h, 2 * w)
    return m.head(m.conv2(x))


@net(IMAGE, "conv1 second", conv1=conv(3, 12), first=conv(12, 12, groups=3),
     shuffle=nn.ChannelShuffle(3), second=conv(12, 12, groups=3), head=head(12))  # fmt: skip
def channel_shuffle(m: Net, x: Tensor) -> Tensor:
    return m.head(m.second(m.shuffle(m.first(m.conv1(x).relu()))).relu())


def shuffle_by_hand(x: Tensor, groups: int) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, groups, c // groups, h, w).transpose(1, 2).reshape(b, c, h, w)


@net(IMAGE, "conv1 conv2", conv1=conv(3, 12), conv2=conv(12, 6), head=head(6))
def channel_shuffle_by_hand(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(shuffle_by_hand(m.conv1(x).relu(), 3)))


@net(IMAGE, "conv1 conv2", conv1=conv(3, 12), conv2=conv(12, 6), head=head(6))
def channel_shuffle_by_flatten(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    return m.head(m.conv2(x.unflatten(1, (3, -1)).transpose(1, 2).flatten(1, 2)))


@net(IMAGE, "conv2", either="conv1", conv1=conv(3, 12), conv2=conv(12, 6), head=head(6))
def channel_shuffle_added_to_itself(m: Net, x: Tensor) -> Tensor:
    """The cycles of the permutation live and die together."""
    x = m.conv1(x).relu()
    return m.head(m.conv2(x + shuffle_by_hand(x, 3)))


@net(IMAGE, "a b", a=conv(3, 6), b=conv(3, 6), mix=conv(12, 6), head=head(6))
def cat_and_shuffle(m: Net, x: Tensor) -> Tensor:
    return m.head(m.mix(shuffle_by_hand(torch.cat([m.a(x), m.b(x)], 1).relu(), 2)))


class ShuffleUnit(nn.Module):
    """ShuffleNet V2: half the channels pass, half are convolved, then both are shuffled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1), nn.BatchNorm2d(half), nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False), nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1), nn.BatchNorm2d(half), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return shuffle_by_hand(torch.cat((left, self.branch(right)), 1), 2)


@net(IMAGE, "stem one.branch.0 two.branch.0", stem=conv(3, 16), one=ShuffleUnit(16),
     two=ShuffleUnit(16), last=conv(16, 6, 1), head=head(6))  # fmt: skip
def shuffle_units(m: Net, x: Tensor) -> Tensor:
    return m.head(m.last(m.two(m.one(m.stem(x).relu()))))


@net(IMAGE, "conv1 conv2", conv1=conv(3, 16), conv2=conv(8, 6), head=head(6))
def maxout_of_neighbours(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x)
    b, c, h, w = x.shape
    return m.head(m.conv2(x.view(b, c // 2, 2, h, w).amax(2)))


@net(IMAGE, "conv1 conv2", conv1=conv(3, 16), conv2=conv(8, 6), head=head(6))
def maxout_of_halves(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x)
    b, c, h, w = x.shape
    return m.head(m.conv2(x.view(b, 2, c // 2, h, w).max(1).values))


@net(IMAGE, "conv2", either="conv1", conv1=conv(3, 16), conv2=conv(8, 6), head=head(6))
def mean_of_halves(m: Net, x: Tensor) -> Tensor:
    """A mean over pairs of channels, whose number stays two."""
    return m.head(m.conv2(m.conv1(x).unflatten(1, (2, -1)).mean(1)).relu())


@net(IMAGE, "conv2", either="conv1", literal=True, conv1=conv(3, 16), conv2=conv(2, 6),
     head=head(6))  # fmt: skip
def mean_within_halves(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).unflatten(1, (2, -1)).mean(2)).relu())


@net(IMAGE, either="conv1", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6), literal=True)
def channels_and_rows_exchanged(m: Net, x: Tensor) -> Tensor:
    """After the reshape, rows and channels are mixed up for good."""
    x = m.conv1(x).relu()
    return m.head(m.conv2(x.transpose(1, 2).reshape(len(x), 8, 4, -1)))


@net(IMAGE, either="conv1", conv1=conv(3, 8), conv2=conv(8, 6), literal=True, fc=nn.Linear(6, 5))
def overlapping_windows(m: Net, x: Tensor) -> Tensor:
    windows = m.conv1(x).relu().unfold(2, 4, 2).unfold(3, 4, 2)
    patches = windows.permute(0, 2, 3, 1, 4, 5).reshape(-1, windows.shape[1], 4, 4)
    return m.fc(m.conv2(patches).mean((2, 3)))


@net(IMAGE, "conv1 fc1", conv1=conv(3, 8), fc1=nn.Linear(8, 6), fc=nn.Linear(6, 5))
def windows_as_in_swin(m: Net, x: Tensor) -> Tensor:
    """The pixels of a window become tokens, in a batch of all windows of all images."""
    x = m.conv1(x).relu().permute(0, 2, 3, 1)
    b, h, w, c = x.shape
    x = x.view(b, h // 4, 4, w // 4, 4, c).transpose(2, 3).reshape(-1, 16, c)
    x = m.fc1(x).relu()
    x = x.view(b, h // 4, w // 4, 4, 4, -1).transpose(2, 3).reshape(b, h * w, -1)
    return m.fc(x.mean(1))
