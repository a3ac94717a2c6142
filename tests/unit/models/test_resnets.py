"""The residual networks: sizes, names and outputs of their well-known namesakes."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional as F

from rsprune.errors import InvalidParameterError
from rsprune.metrics import profile
from rsprune.models import CifarResNet, ResNet
from rsprune.models.cifar_resnet import BasicBlock
from tests.zoo import import_torchvision


@pytest.mark.parametrize(
    ("depth", "params", "macs"),
    [(20, 269_722, 40.55e6), (56, 853_018, 125.49e6), (110, 1_727_962, 252.89e6)],
)
def test_cifar_sizes(depth: int, params: int, macs: float) -> None:
    """Parameters and multiply-accumulates of the published networks with option A shortcuts."""
    found = profile(CifarResNet(depth), torch.empty(1, 3, 32, 32))
    assert found.params == params
    assert found.macs == pytest.approx(macs, rel=1e-3)


def test_cifar_names() -> None:
    """Names of the trained networks in common use; shortcuts hold no parameters."""
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = ["conv1.weight", *(f"bn1.{name}" for name in norm)]
    for stage in (1, 2, 3):
        for block in range(3):
            for i in (1, 2):
                prefix = f"layer{stage}.{block}"
                expected += [f"{prefix}.conv{i}.weight", *(f"{prefix}.bn{i}.{n}" for n in norm)]
    expected += ["linear.weight", "linear.bias"]
    assert list(CifarResNet(20).state_dict()) == expected


def test_cifar_shortcut() -> None:
    """Where the size changes, every second pixel, and a quarter of the width in zeros each side."""
    block = BasicBlock(16, 32, stride=2)
    x = torch.randn(1, 16, 8, 8)
    assert torch.equal(block.shortcut(x), F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 8, 8)))


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")
@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152])
def test_torchvision_twins(depth: int) -> None:
    """torchvision's names and shapes; the same weights give the same scores."""
    twin = import_torchvision().models.get_model(f"resnet{depth}", weights=None).eval()
    model = ResNet(depth).eval()
    state = twin.state_dict()
    assert list(model.state_dict()) == list(state)
    model.load_state_dict(state)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model(x), twin(x))


def test_bad_depths() -> None:
    """A depth that does not exist is refused."""
    with pytest.raises(InvalidParameterError, match=r"6 n \+ 2"):
        CifarResNet(21)
    with pytest.raises(InvalidParameterError, match="18, 34, 50"):
        ResNet(20)
