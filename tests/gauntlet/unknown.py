"""Operators that no rule covers, and code that looks at values."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.gauntlet.registry import IMAGE, Net, conv, head, net

LAYERS = {"conv1": conv(3, 8), "conv2": conv(8, 6), "head": head(6)}


@net(IMAGE, "conv2", frozen="conv1=fft", **LAYERS)
def fourier_transform(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(torch.fft.fft2(m.conv1(x)).real).relu())


@net(IMAGE, "conv2", frozen="conv1=sort", **LAYERS)
def sort_over_channels(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).sort(1).values).relu())


@net(IMAGE, "conv2", frozen="conv1=topk", conv1=conv(3, 8), conv2=conv(3, 6), head=head(6))
def top_three_channels(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).topk(3, 1).values).relu())


@torch.library.custom_op("rsprune_gauntlet::twist", mutates_args=())
def twist(x: Tensor) -> Tensor:
    """Each channel gets half of the one before."""
    return x + 0.5 * x.roll(1, 1)


@twist.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("rsprune_gauntlet::opaque", mutates_args=())
def opaque(x: Tensor) -> Tensor:
    """The same without a rule for its shape: it runs on real tensors only."""
    return x + 0.5 * x.roll(1, 1)


for operator in (twist, opaque):
    operator.register_autograd(lambda _, grad: grad + 0.5 * grad.roll(-1, 1))


@net(IMAGE, "conv2", frozen="conv1=twist", **LAYERS)
def custom_operator(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(twist(m.conv1(x))).relu())


@net(IMAGE, "conv2", frozen="conv1=opaque", **LAYERS)
def custom_operator_without_shapes(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(opaque(m.conv1(x))).relu())


@net(IMAGE, "conv2", either="conv1", **LAYERS)
def matrix_exponential(m: Net, x: Tensor) -> Tensor:
    """Over space, image by image."""
    return m.head(m.conv2(torch.linalg.matrix_exp(0.1 * m.conv1(x))).relu())


@net(IMAGE, "conv2", either="conv1", **LAYERS)
def branch_on_values(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x)
    x = x.relu() if x.mean() > -100 else x.tanh()
    return m.head(m.conv2(x).relu())


@net(IMAGE, "conv2", either="conv1", **LAYERS)
def number_taken_out(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x)
    return m.head(m.conv2(x / (1 + float(x.detach().abs().max()))).relu())


@net(IMAGE, "conv2", either="conv1", **LAYERS)
def count_that_depends_on_values(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x)
    count = (x > 0).nonzero().shape[0]
    return m.head(m.conv2(x / (1 + count)).relu())


@net(IMAGE, "conv2", either="conv1", **LAYERS)
def written_where_a_mask_is_true(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x)
    x = x.clone()
    x[x < 0] = 0.1
    return m.head(m.conv2(x))


@net(IMAGE, "conv2", either="conv1", **LAYERS)
def out_of_torch_and_back(m: Net, x: Tensor) -> Tensor:
    """Numpy sees nothing of the labels."""
    x = m.conv1(x)
    scale = torch.from_numpy(1 + abs(x.detach().numpy()).mean(axis=1, keepdims=True))
    return m.head(m.conv2(x / scale).relu())
