"""ResNet for ImageNet (He et al. 2016), with torchvision's parameter names."""

from __future__ import annotations

from torch import Tensor, nn

from rsprune.errors import InvalidParameterError

# Blocks of each of the four stages, and whether they are bottlenecks.
_DEPTHS: dict[int, tuple[tuple[int, int, int, int], bool]] = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _projection(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) to (N, width, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(self.bn2(self.conv2(x)) + shortcut)
        return out


class Bottleneck(nn.Module):
    """A 3 x 3 convolution between two 1 x 1 ones, and a shortcut."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = self.expansion * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, wide, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(wide)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _projection(channels, wide, stride)

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) to (N, 4 width, H / stride, W / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        out: Tensor = self.relu(self.bn3(self.conv3(x)) + shortcut)
        return out


def _projection(channels: int, width: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and channels == width:
        return None
    convolution = nn.Conv2d(channels, width, 1, stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width))


class ResNet(nn.Module):
    """Four stages of residual blocks, 64 to 512 channels wide (four times that in bottlenecks).

    Takes images (N, 3, H, W), usually 224 x 224.
    """

    def __init__(self, depth: int, classes: int = 1000) -> None:
        super().__init__()
        if depth not in _DEPTHS:
            raise InvalidParameterError("ResNet", "depth", f"one of {list(_DEPTHS)}", depth)
        blocks, bottleneck = _DEPTHS[depth]
        kind = Bottleneck if bottleneck else BasicBlock
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(kind, 64, 64, blocks[0], stride=1)
        self.layer2 = _stage(kind, 64 * kind.expansion, 128, blocks[1], stride=2)
        self.layer3 = _stage(kind, 128 * kind.expansion, 256, blocks[2], stride=2)
        self.layer4 = _stage(kind, 256 * kind.expansion, 512, blocks[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * kind.expansion, classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights of all convolutions anew."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, classes)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        out: Tensor = self.fc(self.avgpool(x).flatten(1))
        return out


def _stage(
    kind: type[BasicBlock] | type[Bottleneck], channels: int, width: int, blocks: int, stride: int
) -> nn.Sequential:
    wide = width * kind.expansion
    rest = (kind(wide, width, 1) for _ in range(blocks - 1))
    return nn.Sequential(kind(channels, width, stride), *rest)
