"""Activations, gates, dropout and other operators that work channel by channel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gauntlet.registry import IMAGE, Net, conv, head, net, parameter


def between(m: Net, x: Tensor) -> Tensor:
    """Two convolutions with something between them."""
    return m.head(m.conv2(m.act(m.conv1(x))))


def register(name: str, act: Any) -> None:
    net(IMAGE, "conv1 conv2", name=name, conv1=conv(3, 8), act=act, conv2=conv(8, 6),
        head=head(6))(between)  # fmt: skip


PLAIN: tuple[nn.Module, ...] = (
    nn.CELU(), nn.ELU(), nn.GELU(), nn.Hardshrink(), nn.Hardsigmoid(), nn.Hardswish(),
    nn.Hardtanh(), nn.LeakyReLU(), nn.LogSigmoid(), nn.Mish(), nn.ReLU(), nn.ReLU6(), nn.RReLU(),
    nn.SELU(), nn.SiLU(), nn.Sigmoid(), nn.Softplus(), nn.Softshrink(), nn.Softsign(),
    nn.Tanh(), nn.Tanhshrink(), nn.Threshold(0.1, 0.3),
)  # fmt: skip
for module in PLAIN:
    register(f"activation_{type(module).__name__.lower()}", module)

register("activation_gelu_by_tanh", nn.GELU("tanh"))
register("activation_relu_in_place", nn.ReLU(inplace=True))
register("activation_hardswish_in_place", nn.Hardswish(inplace=True))
register("activation_prelu_per_channel", nn.PReLU(8))
register("activation_prelu_shared", nn.PReLU())
register("dropout", nn.Dropout(0.3))
register("dropout_of_channels", nn.Dropout2d(0.3))
register("dropout_alpha", nn.AlphaDropout(0.3))
register("dropout_feature_alpha", nn.FeatureAlphaDropout(0.3))


@net((2, 3, 12), "conv1", conv1=nn.Conv1d(3, 8, 3), drop=nn.Dropout1d(0.3), fc=nn.Linear(8, 5))
def dropout_1d(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.drop(m.conv1(x)).mean(2))


FUNCTIONS = {
    "exp": lambda x: x.clamp(max=3).exp(),
    "log1p": lambda x: x.relu().log1p(),
    "powers": lambda x: x.square() + x.abs().add(0.1).sqrt() + x.pow(3),
    "trigonometry": lambda x: x.sin() + x.cos() + x.atan(),
    "rounding": lambda x: x.floor() + x.frac() + x.sign() + x.round(),
    "error_function": torch.erf,
    "clamp": lambda x: x.clamp(-1, 1),
    "scalars": lambda x: 2 - 3 * x / 4 + x.remainder(2),
    "lerp": lambda x: torch.lerp(x, x.relu(), 0.3),
    "fused": lambda x: torch.addcmul(x, x, x.sigmoid(), value=0.5),
    "divide": lambda x: x / (1 + x.abs()),
    "maximum": lambda x: torch.maximum(x, -0.5 * x) + torch.minimum(x, x.square()),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "masked_fill": lambda x: x.masked_fill(x < 0, 0.2),
    "comparisons": lambda x: x * (x > 0) + (x < 0.5).to(x.dtype),
    "casts": lambda x: x.float().double() + x.to(torch.float64),
    "clone": lambda x: x.clone().contiguous() + x.detach(),
    "noise": lambda x: x + 0 * torch.randn_like(x),
    "constants": lambda x: x + torch.ones_like(x) + x.new_full(x.shape, 0.5),
    "nan_to_num": torch.nan_to_num,
}
for name, function in FUNCTIONS.items():
    net(IMAGE, "conv1 conv2", name=f"function_{name}", conv1=conv(3, 8), conv2=conv(8, 6),
        head=head(6))(
            lambda m, x, act=function: m.head(m.conv2(act(m.conv1(x))))
        )  # fmt: skip


@net(IMAGE, "conv1 conv2", conv1=conv(3, 8), conv2=conv(4, 6), head=head(6))
def glu_over_channels(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(F.glu(m.conv1(x), 1)))


@net((2, 4, 7), "fc1", fc1=nn.Linear(7, 16), fc2=nn.Linear(8, 5))
def gated_linear_unit(m: Net, x: Tensor) -> Tensor:
    value, gate = m.fc1(x).chunk(2, dim=-1)
    return m.fc2(value * F.silu(gate))


@net(IMAGE, "conv1 gate", conv1=conv(3, 8), gate=conv(8, 8), conv2=conv(8, 6), head=head(6))
def sigmoid_gate(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x)
    return m.head(m.conv2(x * m.gate(x).sigmoid()))


@net(IMAGE, "conv1", conv1=conv(3, 8), gate=conv(8, 1), conv2=conv(8, 6), head=head(6))
def spatial_gate(m: Net, x: Tensor) -> Tensor:
    """The gate has one channel, which all others share."""
    x = m.conv1(x)
    return m.head(m.conv2(x * m.gate(x).sigmoid()))


@net(IMAGE, "conv1 conv2", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def softmax_over_space(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x)
    weights = x.flatten(2).softmax(-1).view_as(x)
    return m.head(m.conv2(x * weights))


@net(IMAGE, "conv2", frozen="conv1=softmax", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def softmax_over_channels(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).softmax(1)).relu())


@net(IMAGE, "conv2", frozen="conv1=softmax", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def softmax_over_channels_last(m: Net, x: Tensor) -> Tensor:
    """The same behind a permutation, where the channels are the last dimension."""
    x = m.conv1(x).permute(0, 2, 3, 1).softmax(-1).permute(0, 3, 1, 2)
    return m.head(m.conv2(x).relu())


@net(IMAGE, "conv1 conv2", conv1=conv(3, 8), act=nn.ReLU(inplace=True), conv2=conv(8, 6),
     head=head(6), shift=parameter(8, 1, 1))  # fmt: skip
def in_place(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x)
    x.mul_(2).add_(m.shift).clamp_(min=-1).sub_(0.05)
    x += x.sigmoid()
    x = m.act(x)
    return m.head(F.relu_(m.conv2(x)))


@net(IMAGE, "conv1 conv2", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def stochastic_depth(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    if m.training:
        x = x * torch.empty(len(x), 1, 1, 1, dtype=x.dtype).bernoulli_(0.5).div_(0.5)
    return m.head(m.conv2(x))


class Swish(torch.autograd.Function):
    """An activation with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = x.sigmoid()
        return grad * (gate + x * gate * (1 - gate))


@net(IMAGE, "conv1 conv2", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def custom_autograd_function(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(Swish.apply(m.conv1(x))))


@net(
    IMAGE,
    "conv1 conv2",
    conv1=conv(3, 8),
    scale=parameter(1),
    shift=parameter(),
    conv2=conv(8, 6),
    head=head(6),
)
def scalar_parameters(m: Net, x: Tensor) -> Tensor:
    """One number for all channels is no channel."""
    return m.head(m.conv2(m.conv1(x) * m.scale + m.shift))


@net(IMAGE, either="conv1 conv2", conv1=conv(3, 8), conv2=conv(3, 8), fc=nn.Linear(64, 5))
def cosine_similarity(m: Net, x: Tensor) -> Tensor:
    return m.fc(F.cosine_similarity(m.conv1(x), m.conv2(x), dim=1).flatten(1))


@net(IMAGE, either="conv1", conv1=nn.Conv2d(3, 8, 1), conv2=conv(8, 6), head=head(6))
def channels_added_to_rows(m: Net, x: Tensor) -> Tensor:
    """A transposed addition ties the channels to the rows, which nobody can drop."""
    x = m.conv1(x)
    return m.head(m.conv2((x + x.transpose(1, 2)).relu()))
