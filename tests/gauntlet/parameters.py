"""Tied, bare, frozen and parametrised parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from tests.gauntlet.registry import IMAGE, Net, conv, head, net, parameter, tokens


@net(IMAGE, "stem shared", stem=conv(3, 8), shared=conv(8, 8), head=head(8))
def module_called_twice(m: Net, x: Tensor) -> Tensor:
    return m.head(m.shared(m.shared(m.stem(x).relu()).relu()))


@net(IMAGE, "a b shared", a=conv(3, 8), b=conv(3, 8), shared=conv(8, 6), head=head(12))
def module_on_two_inputs(m: Net, x: Tensor) -> Tensor:
    return m.head(torch.cat([m.shared(m.a(x).relu()), m.shared(m.b(x).relu())], 1))


@net(IMAGE, "stem weight", stem=conv(3, 8), weight=parameter(8, 8, 3, 3), head=head(8))
def weight_used_twice(m: Net, x: Tensor) -> Tensor:
    x = F.conv2d(m.stem(x).relu(), m.weight, padding=1).relu()
    return m.head(F.conv2d(x, m.weight, padding=1))


@net(IMAGE, "stem weight", stem=conv(3, 8), weight=parameter(6, 8, 3, 3), head=head(8))
def weight_used_transposed(m: Net, x: Tensor) -> Tensor:
    """An autoencoder with tied weights: back through the weight of the way there."""
    x = F.conv2d(m.stem(x).relu(), m.weight, padding=1).relu()
    return m.head(F.conv_transpose2d(x, m.weight, padding=1))


class TiedEmbedding(nn.Module):
    """A language model's output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.fc = nn.Linear(8, 8)
        self.out = nn.Linear(8, 10, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.fc(self.embed(x)).relu())


net(tokens(10, 2, 6), "embed:1", name="weights_tied_by_name")(TiedEmbedding)


@net(tokens(10, 2, 6), "embed:1", embed=nn.Embedding(10, 8), fc=nn.Linear(8, 8))
def weights_tied_by_transposition(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.embed(x)).relu() @ m.embed.weight.t()


class TiedConvs(nn.Module):
    """Two modules around one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = conv(3, 8), conv(8, 8), conv(8, 8), head(8)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(self.a(self.stem(x).relu()).relu()))


net(IMAGE, "stem a", name="weights_tied_between_modules")(TiedConvs)


@net(IMAGE, either="conv1.parametrizations.weight.original1", conv1=weight_norm(conv(3, 8)),
     conv2=weight_norm(conv(8, 6)), head=head(6))  # fmt: skip
def weight_norm_of_filters(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).relu()))


@net(IMAGE, either="conv1.parametrizations.weight.original", conv1=spectral_norm(conv(3, 8)),
     conv2=spectral_norm(conv(8, 6)), head=head(6))  # fmt: skip
def spectral_norm_of_filters(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).relu()))


@net((2, 7), "fc1", either="fc2.parametrizations.weight.original", fc1=nn.Linear(7, 8),
     fc2=orthogonal(nn.Linear(7, 6)), fc3=nn.Linear(14, 5))  # fmt: skip
def orthogonal_rows(m: Net, x: Tensor) -> Tensor:
    """One entry less of an orthogonal matrix, and all others change."""
    return m.fc3(torch.cat([m.fc1(x), m.fc2(x)], 1).relu())


class Doubled(nn.Module):
    """A parametrisation element by element."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight * 2 + weight.tanh()


class Parametrised(nn.Module):
    """A convolution whose weight a module computes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.head = conv(3, 8), conv(8, 6), head(6)
        for layer in (self.conv1, self.conv2):
            nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv2(self.conv1(x).relu()))


net(IMAGE, "conv1.parametrizations.weight.original conv2.parametrizations.weight.original",
    name="parametrised_by_elements")(Parametrised)  # fmt: skip


@net(IMAGE, "stem gamma:1", stem=conv(3, 8), gamma=parameter(1, 8, 1, 1), conv1=conv(8, 8),
     head=head(8))  # fmt: skip
def layer_scale(m: Net, x: Tensor) -> Tensor:
    x = m.stem(x)
    return m.head(x + m.gamma * m.conv1(x.relu()))


@net(IMAGE, "embed position:2", embed=nn.Conv2d(3, 8, 4, 4), position=parameter(1, 4, 8),
     fc1=nn.Linear(8, 6), fc=nn.Linear(6, 5))  # fmt: skip
def positional_embedding(m: Net, x: Tensor) -> Tensor:
    x = m.embed(x).flatten(2).transpose(1, 2) + m.position
    return m.fc(m.fc1(x).relu().mean(1))


@net(IMAGE, "embed token:2", embed=nn.Conv2d(3, 8, 4, 4), token=parameter(1, 1, 8),
     mix=nn.Linear(5, 5), fc=nn.Linear(8, 5))  # fmt: skip
def token_of_class(m: Net, x: Tensor) -> Tensor:
    x = m.embed(x).flatten(2).transpose(1, 2)
    x = torch.cat([m.token.expand(len(x), -1, -1), x], 1)
    return m.fc(m.mix(x.transpose(1, 2))[:, :, 0].relu())


@net(IMAGE, "position:1", position=parameter(1, 8, 8, 8), conv1=conv(11, 6), head=head(6))
def parameter_that_is_an_image(m: Net, x: Tensor) -> Tensor:
    """The channels come from a parameter alone."""
    return m.head(m.conv1(torch.cat([x, m.position.expand(len(x), -1, -1, -1)], 1)).relu())


@net(IMAGE, "stem weights.0 weights.1", stem=conv(3, 8), head=head(6),
     weights=nn.ParameterList([torch.randn(8, 8, 3, 3), torch.randn(6, 8, 3, 3)]))  # fmt: skip
def list_of_parameters(m: Net, x: Tensor) -> Tensor:
    x = m.stem(x).relu()
    for weight in m.weights:
        x = F.conv2d(x, weight, padding=1).relu()
    return m.head(x)


class FrozenLayers(nn.Module):
    """A network of which only the head is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn, self.conv2, self.head = (
            conv(3, 8),
            nn.BatchNorm2d(8),
            conv(8, 6),
            head(6),
        )
        for layer in (self.conv1, self.bn):
            layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv2(self.bn(self.conv1(x)).relu()))


net(IMAGE, "conv1 conv2", name="layers_without_gradient")(FrozenLayers)


class Buffers(nn.Module):
    """Constants of the input's width, of a layer's width, and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.rand(1, 3, 1, 1))
        self.register_buffer("shift", torch.rand(8, 1, 1))
        self.register_buffer("table", torch.rand(1, 8, 8, 8), persistent=False)
        self.conv1, self.conv2, self.head = conv(3, 8), conv(8, 6), head(6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x - self.mean) + self.shift + self.table
        return self.head(self.conv2(x.relu()))


net(IMAGE, "conv1 conv2 shift table:1", name="buffers")(Buffers)


class PlainTensor(nn.Module):
    """A tensor that is neither a parameter nor a buffer cannot be cut by name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.head = conv(3, 8), conv(8, 6), head(6)
        self.shift = torch.rand(8, 1, 1, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv2((self.conv1(x) + self.shift).relu()))


net(IMAGE, "conv2", either="conv1", literal=True, name="tensor_in_an_attribute")(PlainTensor)


@net(IMAGE, "conv1", conv1=conv(3, 8), unused=conv(8, 8), conv2=conv(8, 6), head=head(6))
def layer_never_called(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.conv1(x).relu()))


@net(IMAGE, "conv1", conv1=conv(3, 8), dead=conv(8, 6), conv2=conv(8, 6), head=head(6))
def result_never_used(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    m.dead(x)
    return m.head(m.conv2(x))
