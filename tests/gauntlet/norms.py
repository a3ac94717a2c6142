"""Normalisation: over the batch, over space, and over channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gauntlet.registry import IMAGE, Net, conv, head, net, parameter


def between(m: Net, x: Tensor) -> Tensor:
    """Two convolutions with a norm between them."""
    return m.head(m.conv2(m.norm(m.conv1(x)).relu()))


EXACT = {
    "batch_norm": nn.BatchNorm2d(8),
    "batch_norm_without_affine": nn.BatchNorm2d(8, affine=False),
    "batch_norm_without_statistics": nn.BatchNorm2d(8, track_running_stats=False),
    "instance_norm": nn.InstanceNorm2d(8),
    "instance_norm_affine": nn.InstanceNorm2d(8, affine=True),
    "instance_norm_with_statistics": nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
}
for name, layer in EXACT.items():
    net(IMAGE, "conv1 conv2", name=name, conv1=conv(3, 8), norm=layer, conv2=conv(8, 6),
        head=head(6))(between)  # fmt: skip

OVER_CHANNELS = {
    "group_norm": nn.GroupNorm(2, 8),
    "group_norm_without_affine": nn.GroupNorm(4, 8, affine=False),
    "group_norm_of_one_group": nn.GroupNorm(1, 8),
    "layer_norm_over_everything": nn.LayerNorm((8, 8, 8)),
}
for name, layer in OVER_CHANNELS.items():
    net(IMAGE, "conv1 conv2", statistics=True, name=name, conv1=conv(3, 8), norm=layer,
        conv2=conv(8, 6), head=head(6))(between)  # fmt: skip

# Whether the norm is a rule of its own or its parts are frozen is left open.
net(IMAGE, "conv2", either="conv1", name="group_norm_of_single_channels", conv1=conv(3, 8),
    norm=nn.GroupNorm(8, 8), conv2=conv(8, 6), head=head(6))(between)  # fmt: skip
net(IMAGE, "conv2", either="conv1", statistics=True, name="local_response_norm", conv1=conv(3, 8),
    norm=nn.LocalResponseNorm(3), conv2=conv(8, 6), head=head(6))(between)  # fmt: skip


@net(
    (2, 7), "fc1 fc2", fc1=nn.Linear(7, 8), norm=nn.BatchNorm1d(8), fc2=nn.Linear(8, 6),
    fc3=nn.Linear(6, 5),
)  # fmt: skip
def batch_norm_1d(m: Net, x: Tensor) -> Tensor:
    return m.fc3(m.fc2(m.norm(m.fc1(x)).relu()))


@net((2, 3, 4, 4, 4), "conv1", conv1=nn.Conv3d(3, 8, 3), norm=nn.BatchNorm3d(8),
     fc=nn.Linear(8, 5))  # fmt: skip
def batch_norm_3d(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.norm(m.conv1(x)).relu().mean((2, 3, 4)))


@net(IMAGE, "norm1 conv1", stem=conv(3, 8), norm1=nn.BatchNorm2d(8), conv1=conv(8, 6),
     norm2=nn.BatchNorm2d(6), head=head(6))  # fmt: skip
def pre_activation(m: Net, x: Tensor) -> Tensor:
    """Norm and activation before the convolution: a dropped channel is relu(beta), not 0."""
    return m.head(m.norm2(m.conv1(m.norm1(m.stem(x)).relu())).relu())


@net((2, 4, 7), "fc1 fc2", statistics=True, fc1=nn.Linear(7, 8), norm=nn.LayerNorm(8),
     fc2=nn.Linear(8, 6), fc3=nn.Linear(6, 5))  # fmt: skip
def layer_norm(m: Net, x: Tensor) -> Tensor:
    return m.fc3(m.fc2(m.norm(m.fc1(x)).relu()))


@net((2, 4, 7), "fc1", statistics=True, fc1=nn.Linear(7, 8),
     norm=nn.LayerNorm(8, elementwise_affine=False), fc2=nn.Linear(8, 5))  # fmt: skip
def layer_norm_without_affine(m: Net, x: Tensor) -> Tensor:
    return m.fc2(m.norm(m.fc1(x)).relu())


@net((2, 4, 7), "fc1", statistics=True, fc1=nn.Linear(7, 8), norm=nn.RMSNorm(8),
     fc2=nn.Linear(8, 5))  # fmt: skip
def rms_norm(m: Net, x: Tensor) -> Tensor:
    return m.fc2(m.norm(m.fc1(x)).relu())


@net((2, 4, 7), "fc2", either="fc1", statistics=True, fc1=nn.Linear(7, 8), scale=parameter(8),
     fc2=nn.Linear(8, 6), fc3=nn.Linear(6, 5))  # fmt: skip
def rms_norm_by_hand(m: Net, x: Tensor) -> Tensor:
    x = m.fc1(x)
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * m.scale
    return m.fc3(m.fc2(x).relu())


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of an image, as in ConvNeXt."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


net(IMAGE, "conv1 conv2", statistics=True, name="layer_norm_2d", conv1=conv(3, 8),
    norm=LayerNorm2d(8), conv2=conv(8, 6), head=head(6))(between)  # fmt: skip


@net(IMAGE, "conv2", either="conv1", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def unit_length_over_channels(m: Net, x: Tensor) -> Tensor:
    """Zeros add nothing to a length, so this norm over channels is exact."""
    return m.head(m.conv2(F.normalize(m.conv1(x), dim=1)))


class StdConv2d(nn.Conv2d):
    """A convolution whose filters are standardised by a batch norm over their inputs."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, padding=1)


@net(IMAGE, "conv2", either="conv1", statistics=True, conv1=conv(3, 8), conv2=StdConv2d(8, 6, 3),
     head=head(6))  # fmt: skip
def weight_standardisation(m: Net, x: Tensor) -> Tensor:
    """Dropped inputs change the mean of each filter; its outputs can be dropped."""
    return m.head(m.conv2(m.conv1(x).relu()))


@net(IMAGE, "conv2", either="conv1", statistics=True, conv1=conv(3, 8), conv2=conv(8, 6),
     scale=parameter(1, 8, 1, 1), shift=parameter(1, 8, 1, 1), head=head(6))  # fmt: skip
def global_response_norm(m: Net, x: Tensor) -> Tensor:
    """ConvNeXt V2: each channel's length, divided by the mean over channels."""
    x = m.conv1(x)
    length = x.norm(p=2, dim=(2, 3), keepdim=True)
    response = length / (length.mean(1, keepdim=True) + 1e-6)
    return m.head(m.conv2(x + m.shift + m.scale * (x * response)))
