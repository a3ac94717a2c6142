"""Every export of every architecture, pruned to half its widths, computes what the model computes.

The twelve have few blocks, and are exported four at a time, since most of an export's time does
not depend on the model; three networks of torchvision's are whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import rsprune
from rsprune.exporting.fold import fold
from rsprune.exporting.formats import onnx_file, pt2_file, safetensors_file
from rsprune.exporting.parity import TOLERANCE, compare
from rsprune.models import build
from rsprune.models.cifar_resnet import CifarResNet
from rsprune.runtimes.batches import Inputs
from rsprune.runtimes.onnx import to_onnx
from rsprune.runtimes.program import capture
from tests.surgery import half_drop
from tests.zoo import calibrate, import_torchvision, randomise

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

Make = Callable[[Any], nn.Module]
X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class UNet(nn.Module):
    """Down and up again, with transposed convolutions and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(8, 8, 2, 2), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.ConvTranspose2d(16, 5, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.down(x)
        return self.head(torch.cat([wide, self.up(self.deep(wide))], 1))


def inception(models: Any) -> nn.Module:
    layers = import_module(f"{models.__name__}.googlenet")  # which a function hides
    return nn.Sequential(
        layers.BasicConv2d(3, 8, kernel_size=3, stride=2),
        layers.Inception(8, 4, 4, 8, 4, 8, 4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 5),
    )


def mobilenet_v3(models: Any) -> nn.Module:
    row = models.mobilenetv3.InvertedResidualConfig
    return models.MobileNetV3([row(16, 5, 32, 16, True, "HS", 1, 1, 1)], 32, num_classes=5)


def efficientnet(models: Any) -> nn.Module:
    row = models.efficientnet.MBConvConfig
    rows = [row(4, 5, 1, 16, 16, 1, 1.0, 1.0)]
    return models.EfficientNet(rows, dropout=0.2, last_channel=32, num_classes=5)


def regnet(models: Any) -> nn.Module:
    parameters = models.regnet.BlockParams([1], [16], [8], [1.0], [2], 0.25)
    return models.RegNet(parameters, num_classes=5)


def convnext(models: Any) -> nn.Module:
    row = models.convnext.CNBlockConfig
    return models.ConvNeXt([row(16, None, 2)], num_classes=5)


GROUPS: tuple[dict[str, Make], ...] = (
    {
        "small_cnn": lambda _: build("small_cnn", channels=3),
        "vgg16": lambda _: build("vgg16"),
        "resnet": lambda _: CifarResNet(8),
        "unet": lambda _: UNet(),
    },
    {
        "densenet": lambda models: models.DenseNet(8, (2, 1), 16, num_classes=5),
        "inception": inception,
        "mobilenet_v2": lambda models: models.MobileNetV2(5, 0.5, [[4, 16, 1, 2]]),
        "convnext": convnext,
    },
    {
        "mobilenet_v3": mobilenet_v3,
        "efficientnet": efficientnet,
        "shufflenet_v2": lambda models: models.ShuffleNetV2([1, 1, 1], [8, 16, 32, 64, 32], 5),
        "regnet": regnet,
    },
)
# Norms that follow no layer directly: those before the activations of dense layers.
ALONE = {"densenet": 5}


class Several(nn.Module):
    """Networks side by side."""

    def __init__(self, networks: dict[str, nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleDict(networks)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: network(x) for name, network in self.networks.items()}


def halved(make: Make) -> tuple[nn.Module, nn.Module]:
    """A network with weights of which none is special, and its pruned version."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make(import_torchvision().models)
    randomise(model)
    calibrate(model, X)
    model.eval()
    graph = rsprune.trace(model, X)
    slim = rsprune.prune(model, graph, half_drop(graph, 0))
    params = [sum(p.numel() for p in m.parameters()) for m in (slim, model)]
    assert params[0] < 0.8 * params[1]
    return model, slim


@pytest.mark.filterwarnings("ignore::rsprune.RsPruneWarning")
@pytest.mark.parametrize("makers", GROUPS, ids=", ".join)
def test_every_export_of(makers: dict[str, Make]) -> None:
    """ONNX, torch programs with norms and without, and safetensors; on two batch sizes."""
    pairs = {name: halved(make) for name, make in makers.items()}
    full, slim = (Several({name: p[i] for name, p in pairs.items()}).eval() for i in (0, 1))
    inputs = Inputs("test", slim, X)
    with torch.no_grad():
        plain = capture(slim, inputs)
        folded, count = fold(plain, inputs)
        files = {
            "safetensors": safetensors_file(slim, full)({}),
            "pt2": pt2_file(plain)({}),
            "pt2, folded": pt2_file(folded)({}),
            "onnx": onnx_file(to_onnx(plain, inputs), slim(X))({}),
        }
        for label, file in files.items():
            assert list(file.run(X)) == list(makers), label
            found = compare(slim, file.run, [inputs.of(2), inputs.of(5)])
            assert found.difference <= TOLERANCE, label
    norms = sum(isinstance(module, _BatchNorm) for module in slim.modules())
    assert count == norms - sum(ALONE.get(name, 0) for name in makers)


@pytest.mark.filterwarnings("ignore::rsprune.RsPruneWarning")
@pytest.mark.parametrize("name", ["resnet18", "densenet121", "shufflenet_v2_x0_5"])
def test_pruned_torchvision_networks_run_in_onnxruntime(name: str, tmp_path: Path) -> None:
    """The file alone gives the outputs of the pruned network, on a batch of another size."""
    _, slim = halved(lambda models: models.get_model(name, num_classes=5))
    done = rsprune.export(slim, X, tmp_path / "slim.onnx")
    session = onnxruntime.InferenceSession(str(done.path), providers=["CPUExecutionProvider"])
    more = torch.cat([X, X.flip(0), X])
    (found,) = session.run(None, {session.get_inputs()[0].name: more.numpy()})
    with torch.no_grad():
        expected = slim(more)
    assert (torch.tensor(found) - expected).abs().max() <= TOLERANCE * expected.abs().max()
