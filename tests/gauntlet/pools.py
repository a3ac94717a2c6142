"""Pools, resizing and padding, over space and over channels."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gauntlet.registry import IMAGE, Net, conv, head, net


def register(name: str, pool: Callable[[Tensor], Tensor]) -> None:
    net(IMAGE, "conv1 conv2", name=name, conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))(
        lambda m, x: m.head(m.conv2(pool(m.conv1(x))))
    )


SPATIAL: dict[str, Callable[[Tensor], Tensor]] = {
    "pool_max": lambda x: F.max_pool2d(x, 3, 2, padding=1),
    "pool_max_dilated": lambda x: F.max_pool2d(x, 2, stride=1, dilation=2, ceil_mode=True),
    "pool_max_with_indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "pool_average": lambda x: F.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False),
    "pool_adaptive_average": lambda x: F.adaptive_avg_pool2d(x, 3),
    "pool_adaptive_max": lambda x: F.adaptive_max_pool2d(x, 3),
    "pool_power": lambda x: F.lp_pool2d(x, 2, 2),
    "resize_nearest": lambda x: F.interpolate(x, scale_factor=2),
    "resize_nearest_exact": lambda x: F.interpolate(x, size=5, mode="nearest-exact"),
    "resize_bilinear": lambda x: F.interpolate(x, size=(5, 7), mode="bilinear"),
    "resize_bilinear_antialias": lambda x: F.interpolate(x, 5, mode="bilinear", antialias=True),
    "resize_bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "resize_area": lambda x: F.interpolate(x, size=3, mode="area"),
    "pad_constant": lambda x: F.pad(x, (1, 2, 0, 1), value=0.7),
    "pad_reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "pad_replicate": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "pad_circular": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
    "crop": lambda x: F.pad(x, (-1, -1, -2, 0)),
    "cumulative_sum_over_space": lambda x: x.cumsum(2) * 0.1,
    "roll_over_space": lambda x: x.roll((1, -2), (2, 3)),
    "flip_over_space": lambda x: x.flip(2, 3),
}
for name, function in SPATIAL.items():
    register(name, function)


@net(
    (2, 3, 12),
    "conv1 conv2",
    conv1=nn.Conv1d(3, 8, 3),
    conv2=nn.Conv1d(8, 6, 1),
    max=nn.MaxPool1d(2),
    mean=nn.AvgPool1d(2, 1),
    up=nn.Upsample(scale_factor=2, mode="linear"),
    last=nn.AdaptiveMaxPool1d(1),
    fc=nn.Linear(6, 5),
)
def pools_1d(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.last(m.conv2(m.up(m.mean(m.max(m.conv1(x)))))).flatten(1))


@net(
    (2, 3, 8, 8, 8),
    "conv1 conv2",
    conv1=nn.Conv3d(3, 8, 3),
    conv2=nn.Conv3d(8, 6, 1),
    max=nn.MaxPool3d(2),
    mean=nn.AvgPool3d(2, 1),
    up=nn.Upsample(scale_factor=2, mode="trilinear"),
    last=nn.AdaptiveAvgPool3d(1),
    fc=nn.Linear(6, 5),
)
def pools_3d(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.last(m.conv2(m.up(m.mean(m.max(m.conv1(x)))))).flatten(1))


@net(
    IMAGE,
    "conv2",
    either="conv1",
    conv1=conv(3, 8),
    conv2=conv(8, 6),
    pool=nn.MaxPool2d(2, return_indices=True),
    up=nn.MaxUnpool2d(2),
    head=head(6),
)
def unpool(m: Net, x: Tensor) -> Tensor:
    x, where = m.pool(m.conv1(x))
    return m.head(m.conv2(m.up(x, where)))


@net(IMAGE, "conv2", either="conv1", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def grid_sample(m: Net, x: Tensor) -> Tensor:
    theta = torch.tensor([[0.8, 0.1, 0.0], [-0.1, 0.9, 0.1]], dtype=x.dtype).expand(len(x), 2, 3)
    x = m.conv1(x)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return m.head(m.conv2(F.grid_sample(x, grid, align_corners=False)))


OVER_CHANNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool_over_channels": lambda x: F.max_pool1d(x, 2),
    "average_pool_over_channels": lambda x: F.avg_pool1d(x, 2),
    "adaptive_pool_over_channels": lambda x: F.adaptive_avg_pool1d(x, 4),
    "resize_over_channels": lambda x: F.interpolate(x, size=4, mode="linear"),
    "pad_circular_over_channels": lambda x: F.pad(x, (1, 1), mode="circular"),
    "convolve_over_channels": lambda x: F.conv1d(
        x, x.new_ones(1, 1, 3).expand(64, 1, 3), groups=64
    ),
}
for name, function in OVER_CHANNELS.items():
    width = {"pad_circular_over_channels": 10, "convolve_over_channels": 6}.get(name, 4)

    @net(IMAGE, "conv2", either="conv1", literal=True, name=name, conv1=conv(3, 8),
         conv2=conv(width, 6), head=head(6))  # fmt: skip
    def over_channels(m: Net, x: Tensor, pool: Callable[[Tensor], Tensor] = function) -> Tensor:
        """An operator of space, applied where the last dimension holds the channels."""
        x = m.conv1(x).flatten(2).transpose(1, 2)
        x = pool(x).transpose(1, 2).unflatten(2, (8, 8))
        return m.head(m.conv2(x).relu())


@net(IMAGE, "conv1", either="conv2", literal=True, conv1=conv(3, 8), conv2=conv(8, 6),
     conv3=conv(10, 6), head=head(6))  # fmt: skip
def pad_channels(m: Net, x: Tensor) -> Tensor:
    """The two padded channels are constants, not units of conv2."""
    x = F.pad(m.conv2(m.conv1(x).relu()), (0, 0, 0, 0, 1, 3), value=0.4)
    return m.head(m.conv3(x))


class OptionA(nn.Module):
    """ResNet's shortcut without parameters: every second pixel, and channels padded by zeros."""

    def __init__(self, pad: int) -> None:
        super().__init__()
        self.shortcut = lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, pad, pad))

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x)


@net(IMAGE, "stem conv1", literal=True, stem=conv(3, 8), bn=nn.BatchNorm2d(8),
     conv1=conv(8, 16, stride=2), bn1=nn.BatchNorm2d(16), conv2=conv(16, 16),
     bn2=nn.BatchNorm2d(16), shortcut=OptionA(4), head=head(16))  # fmt: skip
def padded_shortcut(m: Net, x: Tensor) -> Tensor:
    """Unit u of the stem lives and dies with channel u + 4 of conv2; the padded ones stay."""
    x = m.bn(m.stem(x)).relu()
    y = m.bn2(m.conv2(m.bn1(m.conv1(x)).relu()))
    return m.head((y + m.shortcut(x)).relu())


@net(IMAGE, "stem conv1", literal=True, stem=conv(3, 8), conv1=conv(8, 16, stride=2),
     conv2=conv(16, 12), head=head(12))  # fmt: skip
def padded_shortcut_on_one_side(m: Net, x: Tensor) -> Tensor:
    x = m.stem(x).relu()
    y = m.conv2(m.conv1(x).relu())
    return m.head((y + F.pad(F.avg_pool2d(x, 2), (0, 0, 0, 0, 0, 4))).relu())


@net(IMAGE, "conv1", stem=conv(3, 8), conv1=conv(8, 8, stride=2), conv2=conv(8, 12),
     either="stem", head=head(12))  # fmt: skip
def padded_shortcut_by_zeros(m: Net, x: Tensor) -> Tensor:
    """The padding is as wide as the block asks for: it may follow the widths, or be frozen."""
    x = m.stem(x).relu()
    y = m.conv2(m.conv1(x).relu())
    short = x[:, :, ::2, ::2]
    b, c, h, w = short.shape
    zeros = short.new_zeros(b, y.shape[1] - c, h, w)
    return m.head((y + torch.cat([short, zeros], 1)).relu())
