"""ResNet for CIFAR-10 (He et al. 2016, section 4.2), with parameter-free shortcuts (option A)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from rsprune.errors import InvalidParameterError


class PadShortcut(nn.Module):
    """Every second pixel, and channels of zeros around the others."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.before, self.after = before, after

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, before + C + after, H / 2, W / 2)."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.before, self.after))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1:
            before = (width - channels) // 2
            self.shortcut = PadShortcut(before, width - channels - before)

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) to (N, width, H / stride, W / stride)."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class CifarResNet(nn.Module):
    """Three stages of (depth - 2) / 6 blocks, 16, 32 and 64 channels wide.

    Parameters are named as in the trained networks that are in common use (``conv1``, ``bn1``,
    ``layer1.0.conv1``, ..., ``linear``). Takes images (N, 3, H, W), usually 32 x 32.
    """

    def __init__(self, depth: int, classes: int = 10) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise InvalidParameterError(
                "CifarResNet", "depth", "6 n + 2 for an n of at least 1", depth, "E.g. 20 or 56."
            )
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights of all layers anew."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, classes)."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        out: Tensor = self.linear(x.mean((2, 3)))
        return out


def _stage(channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(channels, width, stride)
    return nn.Sequential(first, *(BasicBlock(width, width, 1) for _ in range(blocks - 1)))
