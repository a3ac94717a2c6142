"""Convolutions, matrix products and embeddings."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gauntlet.registry import IMAGE, Net, conv, head, net, parameter, tokens


@net(
    (2, 3, 12),
    "conv1 conv2",
    conv1=nn.Conv1d(3, 8, 3),
    conv2=nn.Conv1d(8, 6, 3),
    fc=nn.Linear(6, 5),
)
def conv1d(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.conv2(m.conv1(x).relu()).relu().mean(2))


@net(IMAGE, "conv1 conv2", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def conv2d(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).relu()).relu())


@net(
    (2, 3, 6, 6, 6),
    "conv1 conv2",
    conv1=nn.Conv3d(3, 8, 3),
    conv2=nn.Conv3d(8, 6, 3),
    fc=nn.Linear(6, 5),
)
def conv3d(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.conv2(m.conv1(x).relu()).relu().mean((2, 3, 4)))


@net((3, 8, 8), "conv1 conv2", conv1=conv(3, 8), conv2=conv(8, 6), fc=nn.Linear(6, 5))
def convolution_without_batch(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.conv2(m.conv1(x).relu()).relu().mean((1, 2)))


@net(
    IMAGE,
    "conv1 conv2",
    conv1=conv(3, 8, padding_mode="reflect"),
    conv2=conv(8, 6, padding_mode="circular"),
    head=head(6),
)
def convolution_padding_modes(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).relu()))


@net(
    IMAGE,
    "conv1 conv2",
    conv1=nn.Conv2d(3, 8, 3, padding="same"),
    conv2=nn.Conv2d(8, 6, 3, dilation=2, padding="same"),
    head=head(6),
)
def convolution_padding_same(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).relu()))


@net(
    IMAGE,
    "conv1 up1:1 up2:1",
    conv1=conv(3, 8),
    up1=nn.ConvTranspose2d(8, 6, 2, stride=2),
    up2=nn.ConvTranspose2d(6, 4, 3, bias=False),
    head=head(4),
)
def transposed(m: Net, x: Tensor) -> Tensor:
    return m.head(m.up2(m.up1(m.conv1(x).relu()).relu()).relu())


@net(
    (2, 3, 8),
    "conv1 up:1",
    conv1=nn.Conv1d(3, 8, 3),
    up=nn.ConvTranspose1d(8, 6, 3),
    fc=nn.Linear(6, 5),
)
def transposed_1d(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.up(m.conv1(x).relu()).relu().mean(2))


@net(
    (2, 3, 4, 4, 4),
    "conv1 up:1",
    conv1=nn.Conv3d(3, 8, 3),
    up=nn.ConvTranspose3d(8, 6, 2),
    fc=nn.Linear(6, 5),
)
def transposed_3d(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.up(m.conv1(x).relu()).relu().mean((2, 3, 4)))


@net(
    IMAGE,
    "conv1 up:1",
    conv1=conv(3, 8),
    up=nn.ConvTranspose2d(8, 12, 2, stride=2, groups=2),
    head=head(12),
)
def transposed_grouped(m: Net, x: Tensor) -> Tensor:
    return m.head(m.up(m.conv1(x).relu()).relu())


@net(
    IMAGE,
    "conv1",
    conv1=conv(3, 8),
    up=nn.ConvTranspose2d(8, 8, 2, stride=2, groups=8),
    head=head(8),
)
def transposed_depthwise(m: Net, x: Tensor) -> Tensor:
    return m.head(m.up(m.conv1(x).relu()).relu())


@net(
    IMAGE,
    "conv1",
    conv1=conv(3, 8),
    up=nn.ConvTranspose2d(8, 16, 2, stride=2, groups=8),
    head=head(16),
)
def transposed_depthwise_with_multiplier(m: Net, x: Tensor) -> Tensor:
    return m.head(m.up(m.conv1(x).relu()).relu())


@net(
    IMAGE,
    "conv1 grouped",
    conv1=conv(3, 8),
    grouped=conv(8, 12, groups=2),
    conv2=conv(12, 6),
    head=head(6),
)
def grouped(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.grouped(m.conv1(x).relu()).relu()))


@net(
    IMAGE,
    "conv1 first second",
    conv1=conv(3, 8),
    first=conv(8, 8, groups=2),
    second=conv(8, 16, groups=4),
    head=head(16),
)
def grouped_then_more_groups(m: Net, x: Tensor) -> Tensor:
    return m.head(m.second(m.first(m.conv1(x).relu()).relu()).relu())


@net(
    IMAGE,
    "conv1",
    conv1=conv(3, 12),
    first=conv(12, 12, groups=4),
    second=conv(12, 12, groups=6),
    head=head(12),
)
def grouped_then_incommensurable_groups(m: Net, x: Tensor) -> Tensor:
    """Between the two, every channel is tied to every other."""
    return m.head(m.second(m.first(m.conv1(x).relu()).relu()).relu())


@net(
    IMAGE, "conv1 point", conv1=conv(3, 8), deep=conv(8, 8, groups=8), point=conv(8, 6, 1),
    head=head(6),
)  # fmt: skip
def depthwise(m: Net, x: Tensor) -> Tensor:
    return m.head(m.point(m.deep(m.conv1(x).relu()).relu()).relu())


@net(
    IMAGE, "conv1 deep point", conv1=conv(3, 8), deep=conv(8, 16, groups=8), point=conv(16, 6, 1),
    head=head(6),
)  # fmt: skip
def depthwise_with_multiplier(m: Net, x: Tensor) -> Tensor:
    return m.head(m.point(m.deep(m.conv1(x).relu()).relu()).relu())


@net((2, 7), "fc1 fc2", fc1=nn.Linear(7, 8), fc2=nn.Linear(8, 6, bias=False), fc3=nn.Linear(6, 5))
def linear(m: Net, x: Tensor) -> Tensor:
    return m.fc3(m.fc2(m.fc1(x).relu()).relu())


@net((2, 4, 3, 7), "fc1 fc2", fc1=nn.Linear(7, 8), fc2=nn.Linear(8, 6), fc3=nn.Linear(6, 5))
def linear_on_many_dimensions(m: Net, x: Tensor) -> Tensor:
    return m.fc3(m.fc2(m.fc1(x).relu()).relu())


@net((2, 7), "w1:1 w2:1", w1=parameter(7, 8), w2=parameter(8, 6), w3=parameter(6, 5))
def matmul_with_parameters(m: Net, x: Tensor) -> Tensor:
    return ((x @ m.w1).relu() @ m.w2).relu() @ m.w3


@net((2, 4, 7), "w1:1", w1=parameter(7, 8), w2=parameter(8), fc=nn.Linear(4, 5))
def matmul_with_vector(m: Net, x: Tensor) -> Tensor:
    return m.fc((x @ m.w1).relu() @ m.w2)


@net(IMAGE, "conv1 w:1", conv1=conv(3, 8), w=parameter(8, 6), head=head(6))
def einsum(m: Net, x: Tensor) -> Tensor:
    return m.head(torch.einsum("bchw,cd->bdhw", m.conv1(x).relu(), m.w).relu())


@net((2, 4, 6), "w1:1 w2:2", w1=parameter(6, 8), w2=parameter(4, 8, 6), fc=nn.Linear(6, 5))
def einsum_per_token(m: Net, x: Tensor) -> Tensor:
    hidden = torch.einsum("bnc,cd->bnd", x, m.w1).relu()
    return m.fc(torch.einsum("bnd,nde->bne", hidden, m.w2).relu())


@net(
    (2, 7), "w1:1 w2:1", w1=parameter(7, 8), b1=parameter(8), w2=parameter(8, 6), b2=parameter(6),
    fc=nn.Linear(6, 5),
)  # fmt: skip
def addmm(m: Net, x: Tensor) -> Tensor:
    hidden = torch.addmm(m.b1, x, m.w1).relu()
    return m.fc(torch.addmm(m.b2, hidden, m.w2, beta=0.5, alpha=2.0).relu())


@net((2, 4, 7), "w1:1 w2:1", w1=parameter(7, 8), w2=parameter(8, 6), fc=nn.Linear(6, 5))
def bmm(m: Net, x: Tensor) -> Tensor:
    hidden = torch.bmm(x, m.w1.expand(len(x), -1, -1)).relu()
    return m.fc(torch.bmm(hidden, m.w2.expand(len(x), -1, -1)))


@net((2, 4, 7), "w1:1", w1=parameter(7, 8), w2=parameter(2, 8, 6), fc=nn.Linear(6, 5))
def baddbmm(m: Net, x: Tensor) -> Tensor:
    return m.fc(torch.baddbmm(x[:, :, :6], (x @ m.w1).relu(), m.w2))


@net((2, 4, 7), either="q k", q=nn.Linear(7, 8), k=nn.Linear(7, 8), fc=nn.Linear(4, 5))
def product_of_activations(m: Net, x: Tensor) -> Tensor:
    """The contraction meets no parameter; it is exact because both factors are zero."""
    return m.fc(torch.bmm(m.q(x), m.k(x).transpose(1, 2)))


@net((2, 4, 7), either="q k", q=nn.Linear(7, 8), k=nn.Linear(7, 8), fc=nn.Linear(4, 5))
def product_of_sigmoids(m: Net, x: Tensor) -> Tensor:
    """The contraction meets no parameter, and sigmoid(0) is not 0."""
    return m.fc(torch.bmm(m.q(x).sigmoid(), m.k(x).sigmoid().transpose(1, 2)))


@net(IMAGE, either="conv1", conv1=conv(3, 6), fc=nn.Linear(36, 5))
def bilinear_pooling(m: Net, x: Tensor) -> Tensor:
    """A linear layer on all products of two channels."""
    features = m.conv1(x).relu()
    return m.fc(torch.einsum("bchw,bdhw->bcd", features, features).flatten(1))


@net((2, 7), either="fc1 fc2", fc1=nn.Linear(7, 8), fc2=nn.Linear(7, 6), mix=nn.Bilinear(8, 6, 5))
def bilinear(m: Net, x: Tensor) -> Tensor:
    return m.mix(m.fc1(x).relu(), m.fc2(x).relu())


@net(
    tokens(10, 2, 6),
    "embed:1 fc1",
    embed=nn.Embedding(10, 8),
    fc1=nn.Linear(8, 6),
    fc2=nn.Linear(6, 5),
)
def embedding(m: Net, x: Tensor) -> Tensor:
    return m.fc2(m.fc1(m.embed(x)).relu()).mean(1)


@net(tokens(10, 2, 6), "embed:1", embed=nn.Embedding(10, 8, padding_idx=0), fc=nn.Linear(8, 5))
def embedding_with_padding(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.embed(x).mean(1).relu())


@net(tokens(10, 2, 6), either="bag:1", bag=nn.EmbeddingBag(10, 8, mode="sum"), fc=nn.Linear(8, 5))
def embedding_bag(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.bag(x).relu())


@net(IMAGE, either="conv1", conv1=conv(3, 8), point=nn.Linear(72, 6), head=head(6))
def unfold_and_multiply(m: Net, x: Tensor) -> Tensor:
    """A convolution written as im2col and a product."""
    patches = F.unfold(m.conv1(x).relu(), 3, padding=1)
    return m.head(m.point(patches.transpose(1, 2)).transpose(1, 2).unflatten(2, (8, 8)))


@net(IMAGE, "gate", either="conv1 experts:1", conv1=conv(3, 8), gate=nn.Linear(8, 4),
     mix=nn.Linear(4, 3), experts=parameter(3, 6, 8, 3, 3), head=head(6))  # fmt: skip
def weights_made_on_the_fly(m: Net, x: Tensor) -> Tensor:
    """The weight of the convolution is a mixture that the input chooses (of one example)."""
    x = m.conv1(x[:1]).relu()
    mixture = m.mix(m.gate(x.mean((2, 3))).relu()).softmax(1)
    weight = torch.einsum("be,eochw->ochw", mixture, m.experts)
    return m.head(F.conv2d(x, weight, padding=1))


@net((2, 6, 3), either="fc1 lstm.weight_ih_l0:1", fc1=nn.Linear(3, 8), fc2=nn.Linear(6, 5),
     lstm=nn.LSTM(8, 6, batch_first=True))  # fmt: skip
def lstm(m: Net, x: Tensor) -> Tensor:
    return m.fc2(m.lstm(m.fc1(x).relu())[0].mean(1))


@net((2, 6, 3), either="fc1", fc1=nn.Linear(3, 8), fc2=nn.Linear(12, 5),
     gru=nn.GRU(8, 6, batch_first=True, bidirectional=True))  # fmt: skip
def gru(m: Net, x: Tensor) -> Tensor:
    return m.fc2(m.gru(m.fc1(x).relu())[0].mean(1))


class LocalConv(nn.Module):
    """A depthwise filter whose kernel is a buffer, expanded to the width that comes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.rand(1, 1, 3, 3))

    def forward(self, x: Tensor) -> Any:
        width = x.shape[1]
        return F.conv2d(x, self.kernel.expand(width, -1, -1, -1), padding=1, groups=width)


@net(IMAGE, "conv1 conv2", conv1=conv(3, 8), blur=LocalConv(), conv2=conv(8, 6), head=head(6))
def blur_with_expanded_kernel(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.blur(m.conv1(x).relu())))


@net(IMAGE, "conv2", either="conv1", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6),
     kernel=parameter(1, 1, 3, 3))  # fmt: skip
def blur_with_channels_in_the_batch(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    b, c, h, w = x.shape
    x = F.conv2d(x.reshape(b * c, 1, h, w), m.kernel, padding=1).reshape(b, c, h, w)
    return m.head(m.conv2(x))


class BlurPool(nn.Module):
    """A depthwise filter with one kernel per channel in a buffer, as in anti-aliased networks."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.register_buffer("kernel", torch.rand(1, 1, 3, 3).repeat(channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(
            F.pad(x, (1, 1, 1, 1), "reflect"), self.kernel, None, 2, groups=self.channels
        )


@net(IMAGE, "conv1 conv2 pool.kernel", conv1=conv(3, 8), pool=BlurPool(8), conv2=conv(8, 6),
     head=head(6))  # fmt: skip
def blur_with_buffer(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.pool(m.conv1(x).relu())))
