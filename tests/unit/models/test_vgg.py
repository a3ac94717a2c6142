"""VGG16 for CIFAR-10: the rows of the paper's table follow from their widths."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rsprune.errors import InvalidParameterError
from rsprune.metrics import profile
from rsprune.models import VGG16

BASELINE_WEIGHTS, BASELINE_MACS = 15_239_872, 313_725_952
IMAGE = torch.empty(1, 3, 32, 32)

ROWS = {
    "SBP": ("47-50-91-115-227-160-50-72-51-12-34-39-20-20-272", 17.06, 3.16),
    "BC": ("51-62-125-128-228-129-38-13-9-6-5-6-6-6-20", 18.53, 2.57),
    "RBC": ("43-62-120-120-182-113-40-12-20-11-6-9-10-10-22", 23.27, 3.04),
    "IBP": ("45-63-122-123-246-199-82-31-20-17-14-14-31-21-21", 13.47, 2.32),
    "RBP": ("50-63-123-108-104-57-23-14-9-8-6-7-11-11-12", 38.90, 3.50),
    "RSP": ("55-31-65-63-115-75-43-52-52-52-52-52-52-52-52", 38.94, 7.18),
}


def test_baseline() -> None:
    """The uncompressed network, to the last weight."""
    found = profile(VGG16(), IMAGE)
    assert (found.weights, found.macs) == (BASELINE_WEIGHTS, BASELINE_MACS)
    assert found.params == 15_253_578


@pytest.mark.parametrize("row", ROWS)
def test_rows_of_the_table(row: str) -> None:
    """Compression ratio and speed-up of every row follow from its widths."""
    text, ratio, speedup = ROWS[row]
    found = profile(VGG16(widths=[int(width) for width in text.split("-")]), IMAGE)
    assert round(BASELINE_WEIGHTS / found.weights, 2) == ratio
    assert round(BASELINE_MACS / found.macs, 2) == speedup


def test_parameters_are_named_as_in_torchvision() -> None:
    """Convolutions, batch norms and linear layers have the places of vgg16_bn."""
    names = list(VGG16().state_dict())
    assert names[:2] == ["features.0.weight", "features.0.bias"]
    assert names[2] == "features.1.weight"
    assert names[-6:] == [
        f"classifier.{i}.{kind}" for i in (0, 3, 6) for kind in ("weight", "bias")
    ]


def test_runs() -> None:
    """Scores for images of 32 x 32 pixels, of more and of less."""
    model = VGG16(classes=7, widths=[4] * 15).eval()
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 7)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    assert model(torch.randn(1, 3, 64, 48)).shape == (1, 7)


def test_fresh_layers_keep_the_size_of_what_passes_through() -> None:
    """The linear layers, which have no norm, do not shrink it."""
    torch.manual_seed(0)
    head = VGG16(dropout=0.0).classifier
    features = torch.randn(64, 512).relu()
    for layer in (head[:2], head[2:5]):
        scores = layer(features)
        assert 0.7 < scores.norm() / features.norm() < 1.4
        features = scores


def test_a_fresh_network_passes_on_what_it_sees() -> None:
    """The first layer keeps all colours and pixels of a patch, the others keep their channels."""
    torch.manual_seed(0)
    first, *others = (m.weight for m in VGG16().features if isinstance(m, nn.Conv2d))
    patches = torch.randn(100, 27)
    responses = patches @ first[:27].flatten(1).T
    torch.testing.assert_close(responses @ first[:27].flatten(1), patches)  # all is still there
    assert torch.equal(first[27:54], -first[:27]), "what a ReLU cuts off, the negative keeps"
    for weight in others:
        own = weight[: weight.shape[1]].flatten(1)
        passed = weight.diagonal()[1, 1]  # the middle pixel of the channel of the same number
        assert (passed / own.norm(dim=1) > 0.9).all()


def test_fresh_networks_have_no_zeros() -> None:
    """Zeros are what widths are read from: a network that was not trained sparse has none.

    But for chance: of 15 million normal numbers a few are zero in single precision.
    """
    torch.manual_seed(0)
    weights = [m.weight for m in VGG16().modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert (weights[0] != 0).all()
    assert sum((weight == 0).sum().item() for weight in weights) < 10


def test_narrow_networks_begin_the_same_way() -> None:
    """As after a cut whose weights are drawn anew: fewer filters than waves, or than channels."""
    first, second, *_ = (
        m.weight for m in VGG16(widths=[8, 4] + [4] * 13).features if isinstance(m, nn.Conv2d)
    )
    torch.testing.assert_close(first.flatten(1) @ first.flatten(1).T, torch.eye(8))
    assert (second.diagonal()[1, 1] > 0.5).all()


@pytest.mark.parametrize("widths", [[64] * 14, [64] * 14 + [0], [64.0] * 15])
def test_bad_widths(widths: list[int]) -> None:
    """Fifteen positive integers, or an error that says so."""
    with pytest.raises(InvalidParameterError, match="15 positive integers"):
        VGG16(widths=widths)
