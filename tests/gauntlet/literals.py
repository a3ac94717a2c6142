"""Widths in Python code: literals freeze their group, attributes follow the width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gauntlet.registry import IMAGE, Net, conv, head, net


class Classifier(nn.Module):
    """Knows the width of what comes by heart."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16 * 4 * 4, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(-1, 16 * 4 * 4)  # the literal width
        return self.fc2(self.fc1(x).relu())


@net(IMAGE, "conv1 classifier.fc1", literal=True, warns="classifier", frozen="conv2=view",
     conv1=conv(3, 8), conv2=conv(8, 16), classifier=Classifier())  # fmt: skip
def literal_width_in_view(m: Net, x: Tensor) -> Tensor:
    return m.classifier(F.max_pool2d(m.conv2(m.conv1(x).relu()).relu(), 2))


class Reshape(nn.Module):
    """Knows the channels by heart."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, 16, 64)  # the literal width


@net(IMAGE, "conv1", literal=True, warns="tokens", conv1=conv(3, 8), conv2=conv(8, 16),
     tokens=Reshape(), fc=nn.Linear(16, 5))  # fmt: skip
def literal_width_in_reshape(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.tokens(m.conv2(m.conv1(x).relu()).relu()).mean(2))


class Hidden(nn.Module):
    """A patch embedding that knows its width by an attribute, as in torchvision's ViT."""

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.conv = nn.Conv2d(3, hidden_dim, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x.reshape(len(x), self.hidden_dim, -1).permute(0, 2, 1)


@net(IMAGE, "patches.conv fc1", patches=Hidden(12), fc1=nn.Linear(12, 6), fc=nn.Linear(6, 5))
def attribute_in_reshape(m: Net, x: Tensor) -> Tensor:
    return m.fc(m.fc1(m.patches(x)).relu().mean(1))


class Flattened(nn.Module):
    """Holds the product of a width and a size in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.num_features = 8 * 16
        self.conv = conv(3, 8)
        self.fc = nn.Linear(self.num_features, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.max_pool2d(self.conv(x).relu(), 2).view(-1, self.num_features))


net(IMAGE, either="conv", literal=True, name="attribute_of_width_times_size")(Flattened)


class SamePool(nn.Module):
    """An attribute that happens to equal a width, and is none."""

    def __init__(self) -> None:
        super().__init__()
        self.window = 4
        self.conv1, self.conv2, self.head = conv(3, 4), conv(4, 6), head(6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(self.conv1(x).relu(), self.window)
        return self.head(self.conv2(x * self.window))


net(IMAGE, "conv1 conv2", name="attribute_equal_to_a_width")(SamePool)


class TwoRoles(nn.Module):
    """One attribute for the width and for the side of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 8
        self.conv1, self.conv2, self.head = conv(3, 8), conv(8, 6), head(6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x).relu().view(-1, self.size, self.size, self.size)
        return self.head(self.conv2(x))


net(IMAGE, "conv2", either="conv1", literal=True, name="attribute_in_two_roles")(TwoRoles)


class TwoWidths(nn.Module):
    """One attribute for the widths of two layers, which may come to differ."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 8
        self.a, self.b, self.fc = conv(3, 8), conv(3, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x).relu().view(-1, self.width, 64).mean(2)
        b = self.b(x).relu().view(-1, self.width, 64).mean(2)
        return self.fc(a) * self.fc(b)


# ``fc`` is called on both, so that they are one group after all.
net(IMAGE, "a b", name="attribute_of_two_tied_layers")(TwoWidths)


class TwoFreeWidths(TwoWidths):
    """The same with two layers that nothing ties but the attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.fc2 = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        a = self.a(x).relu().view(-1, self.width, 64).mean(2)
        b = self.b(x).relu().view(-1, self.width, 64).mean(2)
        return self.fc(a) * self.fc2(b)


net(IMAGE, either="a b", literal=True, name="attribute_of_two_free_layers")(TwoFreeWidths)


@net(IMAGE, "conv2", either="conv1", literal=True, conv1=conv(3, 8), conv2=conv(8, 6),
     narrow=conv(8, 8), head=head(6))  # fmt: skip
def branch_on_width(m: Net, x: Tensor) -> Tensor:
    """The pruned network would take the other branch."""
    x = m.conv1(x).relu()
    if x.shape[1] < 8:
        x = x * 2
    return m.head(m.conv2(x))


@net(IMAGE, "conv2", either="conv1", literal=True, conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def loop_over_channels(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x)
    rows = [x[:, i] * (i + 1) for i in range(x.shape[1])]
    return m.head(m.conv2(torch.stack(rows, 1)).relu())


@net(IMAGE, "conv2", either="conv1", literal=True, conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def zeros_of_literal_width(m: Net, x: Tensor) -> Tensor:
    shift = torch.zeros(1, 8, 1, 1, dtype=x.dtype)
    return m.head(m.conv2(m.conv1(x).relu() + shift))


@net(IMAGE, "conv2", either="conv1", literal=True, conv1=conv(3, 8), conv2=conv(8, 6), head=head(6))
def assertion_on_width(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    if x.shape[1] != 8:
        raise ValueError("eight channels are needed")
    return m.head(m.conv2(x))


@net(
    IMAGE, "conv2", literal=True, either="conv1", conv1=conv(3, 16), conv2=conv(16, 6), head=head(6)
)
def shuffle_of_literal_widths(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    x = x.view(-1, 2, 8, 8, 8).transpose(1, 2).reshape(-1, 16, 8, 8)
    return m.head(m.conv2(x))


@net(
    IMAGE, "conv2", literal=True, either="conv1", conv1=conv(3, 16), conv2=conv(4, 6), head=head(6)
)
def groups_of_literal_width(m: Net, x: Tensor) -> Tensor:
    """Four groups of four: the view would still run with two groups less."""
    x = m.conv1(x)
    b, _, h, w = x.shape
    return m.head(m.conv2(x.view(b, -1, 4, h, w).amax(1)).relu())
