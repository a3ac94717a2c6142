"""A small VGG-like network for digits and Fashion-MNIST, wide enough to be worth pruning."""

from __future__ import annotations

from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Three convolutions with batch norm, pooled after each of the last two, and two linear layers.

    Takes images (N, ``channels``, H, W) of any size from 8 x 8 on.
    """

    def __init__(self, classes: int = 10, channels: int = 1, width: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.conv3 = nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(2 * width)
        self.pool = nn.MaxPool2d(2)
        self.last_pool = nn.AdaptiveMaxPool2d(2)
        self.fc1 = nn.Linear(8 * width, 4 * width)
        self.fc2 = nn.Linear(4 * width, classes)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, classes)."""
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.pool(self.relu(self.bn2(self.conv2(x))))
        x = self.last_pool(self.relu(self.bn3(self.conv3(x))))
        out: Tensor = self.fc2(self.relu(self.fc1(x.flatten(1))))
        return out
