"""Blocks of known architectures."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.gauntlet.registry import IMAGE, Net, conv, head, net


def unit(inputs: int, outputs: int, kernel: int = 3, **settings: int) -> nn.Sequential:
    """Convolution, norm, activation."""
    layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False, **settings)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.SiLU())


@net(IMAGE, "stem conv1 conv2", stem=conv(3, 8), conv1=conv(8, 6), bn1=nn.BatchNorm2d(6),
     conv2=conv(6, 8), bn2=nn.BatchNorm2d(8), head=head(8))  # fmt: skip
def residual(m: Net, x: Tensor) -> Tensor:
    x = m.stem(x).relu()
    y = m.bn2(m.conv2(m.bn1(m.conv1(x)).relu()))
    return m.head((x + y).relu())


@net(IMAGE, "a.0 b c.0", a=unit(3, 8), b=conv(3, 8, 1), c=unit(8, 8), head=head(8))
def downsampled_residual(m: Net, x: Tensor) -> Tensor:
    x = m.a(x) + m.b(x)
    return m.head(x + m.c(x))


@net(
    IMAGE,
    "stem.0 one.0 two.0",
    stem=unit(3, 8),
    one=unit(8, 4),
    two=unit(12, 4),
    last=unit(16, 6),
    head=head(6),
)
def dense_block(m: Net, x: Tensor) -> Tensor:
    features = [m.stem(x)]
    features.append(m.one(torch.cat(features, 1)))
    features.append(m.two(torch.cat(features, 1)))
    return m.head(m.last(torch.cat(features, 1)))


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(width, hidden, 1)
        self.fc2 = nn.Conv2d(hidden, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = F.adaptive_avg_pool2d(x, 1)
        return x * F.hardsigmoid(self.fc2(F.relu(self.fc1(scale))))


@net(IMAGE, "conv1 se.fc1", conv1=conv(3, 8), se=Squeeze(8, 4), conv2=conv(8, 6), head=head(6))
def squeeze_excitation(m: Net, x: Tensor) -> Tensor:
    return m.head(m.conv2(m.se(m.conv1(x).relu())))


@net(IMAGE, "conv1 fc1", conv1=conv(3, 8), fc1=nn.Linear(8, 4), fc2=nn.Linear(4, 8),
     conv2=conv(8, 6), head=head(6))  # fmt: skip
def squeeze_excitation_linear(m: Net, x: Tensor) -> Tensor:
    x = m.conv1(x).relu()
    b, c, _, _ = x.size()
    scale = m.fc2(m.fc1(F.adaptive_avg_pool2d(x, 1).view(b, c)).relu()).sigmoid()
    return m.head(m.conv2(x * scale.view(b, c, 1, 1).expand_as(x)))


@net(
    IMAGE,
    "stem.0 wide.0 se.fc1",
    stem=unit(3, 6),
    wide=unit(6, 12, 1),
    deep=unit(12, 12, groups=12),
    se=Squeeze(12, 4),
    narrow=nn.Conv2d(12, 6, 1),
    bn=nn.BatchNorm2d(6),
    head=head(6),
)
def inverted_residual(m: Net, x: Tensor) -> Tensor:
    x = m.stem(x)
    return m.head(x + m.bn(m.narrow(m.se(m.deep(m.wide(x))))))


@net(IMAGE, "conv2", frozen="conv1=conv", conv1=conv(3, 8), conv2=conv(8, 6), head=head(6),
     over=nn.Conv1d(1, 1, 3, padding=1, bias=False))  # fmt: skip
def efficient_channel_attention(m: Net, x: Tensor) -> Tensor:
    """ECA: a convolution along the channels, for which neighbours matter."""
    x = m.conv1(x).relu()
    scale = m.over(x.mean((2, 3)).unsqueeze(1)).squeeze(1).sigmoid()
    return m.head(m.conv2(x * scale[:, :, None, None]))


@net(IMAGE, "conv2 fc1", frozen="conv1=mean", conv1=conv(3, 8), fc1=nn.Conv2d(8, 4, 1),
     fc2=nn.Conv2d(4, 8, 1), over=conv(2, 1, 7), conv2=conv(8, 6), head=head(6))  # fmt: skip
def convolutional_block_attention(m: Net, x: Tensor) -> Tensor:
    """CBAM: its spatial attention takes mean and maximum over channels."""
    x = m.conv1(x).relu()
    pooled = (F.adaptive_avg_pool2d(x, 1), F.adaptive_max_pool2d(x, 1))
    x = x * sum(m.fc2(m.fc1(p).relu()) for p in pooled).sigmoid()
    maps = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)
    return m.head(m.conv2(x * m.over(maps).sigmoid()))


class Bottleneck(nn.Module):
    """YOLO's residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cv1 = unit(width, width)
        self.cv2 = unit(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cv2(self.cv1(x))


class C2f(nn.Module):
    """YOLO v8's block: halves, a chain of bottlenecks on one, everything concatenated."""

    def __init__(self, inputs: int, outputs: int, count: int = 2) -> None:
        super().__init__()
        self.c = outputs // 2
        self.cv1 = unit(inputs, 2 * self.c, 1)
        self.cv2 = unit((2 + count) * self.c, outputs, 1)
        self.m = nn.ModuleList(Bottleneck(self.c) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        y = list(self.cv1(x).chunk(2, 1))
        y.extend(m(y[-1]) for m in self.m)
        return self.cv2(torch.cat(y, 1))


class C2fSplit(C2f):
    """The same with its width in an attribute."""

    def forward(self, x: Tensor) -> Tensor:
        y = list(self.cv1(x).split((self.c, self.c), 1))
        y.extend(m(y[-1]) for m in self.m)
        return self.cv2(torch.cat(y, 1))


C2F = "stem.0 c2f.cv1.0 c2f.cv2.0 c2f.m.0.cv1.0"


@net(IMAGE, C2F, stem=unit(3, 6), c2f=C2f(6, 8), head=head(8))
def c2f(m: Net, x: Tensor) -> Tensor:
    return m.head(m.c2f(m.stem(x)))


@net(IMAGE, C2F, stem=unit(3, 6), c2f=C2fSplit(6, 8), head=head(8))
def c2f_split(m: Net, x: Tensor) -> Tensor:
    return m.head(m.c2f(m.stem(x)))


@net(IMAGE, "stem.0 a.0 b.0", stem=unit(3, 8), a=unit(8, 6, 1), b=unit(8, 6, 1), deep=Bottleneck(6),
     last=unit(12, 8, 1), head=head(8))  # fmt: skip
def cross_stage_partial(m: Net, x: Tensor) -> Tensor:
    x = m.stem(x)
    return m.head(m.last(torch.cat([m.deep(m.a(x)), m.b(x)], 1)))


@net(IMAGE, "stem.0 squeeze.0", stem=unit(3, 8), squeeze=unit(8, 4, 1), last=unit(16, 6, 1),
     head=head(6))  # fmt: skip
def pyramid_of_pools(m: Net, x: Tensor) -> Tensor:
    """SPPF: a chain of pools, concatenated."""
    parts = [m.squeeze(m.stem(x))]
    for _ in range(3):
        parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
    return m.head(m.last(torch.cat(parts, 1)))


@net(IMAGE, "stem.0 primary.0", stem=unit(3, 8), primary=unit(8, 6, 1), cheap=unit(6, 6, groups=6),
     last=unit(12, 6), head=head(6))  # fmt: skip
def ghost(m: Net, x: Tensor) -> Tensor:
    """Half of the features are cheap copies of the other half."""
    x = m.primary(m.stem(x))
    return m.head(m.last(torch.cat([x, m.cheap(x)], 1)))


@net(
    IMAGE,
    "last.0",
    either="stem.0 primary.0",
    literal=True,
    stem=unit(3, 8),
    primary=unit(8, 6, 1),
    cheap=unit(6, 6, groups=6),
    out_channels=10,
    last=unit(10, 6),
    head=head(6),
)
def ghost_cut_to_width(m: Net, x: Tensor) -> Tensor:
    """GhostNet cuts its twelve features to the ten that were asked for."""
    x = m.primary(m.stem(x))
    return m.head(m.last(torch.cat([x, m.cheap(x)], 1)[:, : m.out_channels]))


@net(
    IMAGE,
    "enter.0 down.0 deep.0 up:1 out.0",
    enter=unit(3, 6),
    down=unit(6, 8, stride=2),
    deep=unit(8, 8),
    up=nn.ConvTranspose2d(8, 6, 2, 2),
    out=unit(12, 6),
    last=conv(6, 2, 1),
)
def u_net(m: Net, x: Tensor) -> Tensor:
    skip = m.enter(x)
    x = m.up(m.deep(m.down(skip)))
    return m.last(m.out(torch.cat([skip, x], 1)))


class RepBlock(nn.Module):
    """RepVGG in training: 3x3, 1x1 and identity, each with its norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Sequential(conv(width, width, bias=False), nn.BatchNorm2d(width))
        self.point = nn.Sequential(conv(width, width, 1, bias=False), nn.BatchNorm2d(width))
        self.identity = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return (self.dense(x) + self.point(x) + self.identity(x)).relu()


@net(IMAGE, "stem.0 one.dense.0", stem=unit(3, 8), one=RepBlock(8), two=RepBlock(8), head=head(8))
def branches_with_identity(m: Net, x: Tensor) -> Tensor:
    return m.head(m.two(m.one(m.stem(x))))


class SplitAttention(nn.Module):
    """ResNeSt's convolution: ``radix`` versions of each channel, weighed by a softmax over them."""

    def __init__(self, inputs: int, width: int, radix: int, groups: int) -> None:
        super().__init__()
        self.radix, self.groups = radix, groups
        self.conv = conv(inputs, width * radix, groups=groups * radix, bias=False)
        self.bn0 = nn.BatchNorm2d(width * radix)
        self.fc1 = nn.Conv2d(width, 8, 1, groups=groups)
        self.fc2 = nn.Conv2d(8, width * radix, 1, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn0(self.conv(x)).relu()
        b, rc, h, w = x.shape
        x = x.reshape(b, self.radix, rc // self.radix, h, w)
        gap = x.sum(1).mean((2, 3), keepdim=True)
        weights = self.fc2(self.fc1(gap).relu())
        weights = weights.view(b, self.groups, self.radix, -1).transpose(1, 2).softmax(1)
        weights = weights.reshape(b, self.radix, rc // self.radix, 1, 1)
        return (x * weights).sum(1)


for title, cardinality in (("split_attention", 1), ("split_attention_grouped", 2)):

    @net(IMAGE, "stem.0 split.conv", name=title, stem=unit(3, 8),
         split=SplitAttention(8, 8, 2, cardinality), last=conv(8, 6, 1), head=head(6))  # fmt: skip
    def split_attention(m: Net, x: Tensor) -> Tensor:
        return m.head(m.last(m.split(m.stem(x))))


@net(IMAGE, "stem.0 small.0 large.0 fc1", stem=unit(3, 8), small=unit(8, 8), large=unit(8, 8, 5),
     fc1=conv(8, 4, 1), fc2=conv(4, 16, 1), last=conv(8, 6, 1), head=head(6))  # fmt: skip
def selective_kernel(m: Net, x: Tensor) -> Tensor:
    """SKNet: a softmax between two branches."""
    x = m.stem(x)
    paths = torch.stack([m.small(x), m.large(x)], 1)
    b, count, c, _, _ = paths.shape
    weights = m.fc2(m.fc1(paths.sum(1).mean((2, 3), keepdim=True)).relu())
    weights = weights.view(b, count, c, 1, 1).softmax(1)
    return m.head(m.last((paths * weights).sum(1)))


@net(IMAGE, "stem.0 a.0", stem=unit(3, 8), a=unit(8, 8), c=unit(4, 4), last=conv(8, 6, 1),
     head=head(6))  # fmt: skip
def chain_of_halves(m: Net, x: Tensor) -> Tensor:
    """Each part is convolved by the same layer and added to the next (Res2Net)."""
    first, second = m.a(m.stem(x)).chunk(2, 1)
    first = m.c(first)
    second = m.c(second + first)
    return m.head(m.last(torch.cat([first, second], 1)))


@net(
    IMAGE,
    "stem.0 fine.0 coarse.0",
    stem=unit(3, 8),
    fine=unit(8, 6),
    coarse=unit(8, 10, stride=2),
    up=conv(10, 6, 1),
    down=conv(6, 10, stride=2),
    last=conv(16, 6),
    head=head(6),
)
def exchange_of_resolutions(m: Net, x: Tensor) -> Tensor:
    """HRNet: two resolutions that exchange features."""
    x = m.stem(x)
    fine, coarse = m.fine(x), m.coarse(x)
    fine, coarse = fine + F.interpolate(m.up(coarse), scale_factor=2), coarse + m.down(fine)
    return m.head(m.last(torch.cat([fine, F.interpolate(coarse, fine.shape[2:])], 1)))


@net(
    IMAGE,
    "stem.0 lateral1 lateral2 smooth",
    stem=unit(3, 8),
    deep=unit(8, 10, stride=2),
    lateral1=conv(8, 6, 1),
    lateral2=conv(10, 6, 1),
    smooth=conv(6, 6),
    score=conv(6, 4, 1),
)
def feature_pyramid(m: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    """One head, shared by both levels."""
    low = m.stem(x)
    high = m.lateral2(m.deep(low))
    low = m.lateral1(low) + F.interpolate(high, scale_factor=2)
    return m.score(m.smooth(low).relu()), m.score(m.smooth(high).relu())


@net(IMAGE, "stem.0 main.0 extra.0", stem=unit(3, 8), main=unit(8, 8), last=nn.Linear(8, 5),
     extra=unit(8, 6), extra_fc=nn.Linear(6, 5))  # fmt: skip
def head_in_training_only(m: Net, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    x = m.stem(x)
    scores = m.last(m.main(x).mean((2, 3)))
    return (scores, m.extra_fc(m.extra(x).mean((2, 3)))) if m.training else scores


@net(IMAGE, "stem.0 main.0", stem=unit(3, 8), main=unit(8, 6), head=head(6), extra=conv(8, 6))
def head_in_evaluation_only(m: Net, x: Tensor) -> Tensor:
    x = m.stem(x)
    y = m.main(x)
    return m.head(y if m.training else y + m.extra(x))


@net(IMAGE, "stem.0 main.0", stem=unit(3, 8), main=unit(8, 6), head=head(6))
def stem_without_gradient(m: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = m.stem(x)
    return m.head(m.main(x))


for title, reentrant in (("checkpoint", False), ("checkpoint_reentrant", True)):

    @net(IMAGE, "stem.0 main.0.0 main.1.0", name=title, stem=unit(3, 8), reentrant=reentrant,
         main=nn.Sequential(unit(8, 6), unit(6, 8)), head=head(8),
         ignore="None of the inputs have requires_grad")  # fmt: skip
    def checkpointed(m: Net, x: Tensor) -> Tensor:
        x = m.stem(x)
        return m.head(x + checkpoint(m.main, x, use_reentrant=m.reentrant))


@net(IMAGE, "stem.0 block.cv1.0", stem=unit(3, 8), block=Bottleneck(8), head=head(8))
def block_called_twice(m: Net, x: Tensor) -> Tensor:
    return m.head(m.block(m.block(m.stem(x))))


@net(
    IMAGE,
    "stem.0 list.0.0 list.2.0",
    stem=unit(3, 8),
    list=nn.ModuleList([unit(8, 6), unit(6, 8), unit(8, 4)]),
    heads=nn.ModuleDict({"coarse": head(4, 2), "fine": head(4, 5)}),
)
def lists_of_modules(m: Net, x: Tensor) -> dict[str, Tensor]:
    x = m.stem(x)
    for layer in m.list:
        x = layer(x)
    return {name: layer(x) for name, layer in m.heads.items()}


@net(IMAGE, "branches.0.0 branches.1.0 branches.2.1.0", branches=nn.ModuleList([
         unit(3, 4, 1), unit(3, 6), nn.Sequential(nn.AvgPool2d(3, 1, 1), unit(3, 2, 1))]),
     last=unit(12, 6), head=head(6))  # fmt: skip
def inception(m: Net, x: Tensor) -> Tensor:
    return m.head(m.last(torch.cat([branch(x) for branch in m.branches], 1)))
