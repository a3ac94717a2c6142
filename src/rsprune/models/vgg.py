"""VGG16 for small images, the network of the paper's CIFAR-10 table."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rsprune.errors import InvalidParameterError

WIDTHS = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512, 512, 512)
_CONVOLUTIONS = 13
_POOL_AFTER = (2, 4, 7, 10, 13)
_NOISE = 0.25  # of filters that pass a channel on; with none they would be zero but for a pixel


class VGG16(nn.Module):
    """13 convolutions with batch norm, pooled after 2, 4, 7, 10 and 13, and three linear layers.

    Parameters are named as in torchvision's ``vgg16_bn``. Takes images (N, 3, H, W) of any size;
    it was made for 32 x 32 pixels.

    Args:
        classes: the number of scores.
        widths: the output channels of the convolutions and of the first two linear layers.
        dropout: after the first two linear layers.
    """

    def __init__(
        self, classes: int = 10, widths: Sequence[int] = WIDTHS, dropout: float = 0.5
    ) -> None:
        super().__init__()
        _check(widths)
        *channels, hidden1, hidden2 = widths
        self.features = nn.Sequential(*_convolutions(channels))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(channels[-1], hidden1), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden1, hidden2), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden2, classes),
        )  # fmt: skip
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights of all layers but the last, those that a ReLU follows, anew.

        Linear layers have no norm: between equal widths, PyTorch's own draw would shrink what
        passes through to 0.4 of its size, and the gradients of all convolutions with it.

        Convolutions begin with what a photograph needs to pass through 13 of them: the first with
        waves, whose responses to photographs are hardly correlated, the others with filters that
        pass a channel on, and little noise. What is left of their filters is all noise.
        """
        *layers, _ = (m for m in self.modules() if isinstance(m, nn.Conv2d | nn.Linear))
        for layer in layers:
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        first, *others = (m.weight for m in self.features if isinstance(m, nn.Conv2d))
        with torch.no_grad():
            waves = _waves()[: len(first)]
            first[: len(waves)] = waves
            for weight in others:
                passing = weight[: weight.shape[1]]
                passing *= _NOISE
                passing += nn.init.dirac_(torch.empty_like(passing))

    def forward(self, x: Tensor) -> Tensor:
        """Scores (N, classes)."""
        out: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return out


def _convolutions(channels: Sequence[int]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    before = 3
    for number, width in enumerate(channels, start=1):
        convolution = nn.Conv2d(before, width, 3, padding=1)
        layers += [convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        if number in _POOL_AFTER:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))  # one pixel is enough for it
        before = width
    return layers


def _waves() -> Tensor:
    """Cosines over three colours and 3x3 pixels, and their negatives (54, 3, 3, 3).

    Over the colours they are grey, red against blue, and green against both. None is exactly zero:
    in single precision the cosine of a right angle is -4e-8.
    """
    place = torch.arange(3)
    cosines = F.normalize(torch.cos(torch.pi / 3 * place[:, None] * (place + 0.5)))  # (3, 3)
    waves = torch.einsum("ac,ih,jw->aijchw", cosines, cosines, cosines).reshape(27, 3, 3, 3)
    return torch.cat((waves, -waves))


def _check(widths: Sequence[int]) -> None:
    right = len(widths) == len(WIDTHS) and all(isinstance(w, int) and w > 0 for w in widths)
    if not right:
        raise InvalidParameterError(
            "VGG16", "widths", f"{len(WIDTHS)} positive integers", widths,
            f"Give the widths of {_CONVOLUTIONS} convolutions and 2 linear layers.",
        )  # fmt: skip
