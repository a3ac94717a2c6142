"""Every export of every architecture, pruned to half its widths, computes what the model computes.

The architectures have few blocks, so that this is quick; three torchvision networks are whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rsprune
from rsprune.exporting.fold import fold
from rsprune.exporting.formats import onnx_file, pt2_file, safetensors_file
from rsprune.exporting.parity import TOLERANCE, compare
from rsprune.models import build
from rsprune.models.cifar_resnet import CifarResNet
from rsprune.runtimes.batches import Inputs
from rsprune.runtimes.program import capture
from tests.surgery import half_drop
from tests.zoo import calibrate, import_torchvision, randomise

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
if find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)

Make = Callable[[Any], nn.Module]


def mobilenet_v3(models: Any) -> nn.Module:
    row = models.mobilenetv3.InvertedResidualConfig
    rows = [row(16, 3, 16, 16, True, "RE", 2, 1, 1), row(16, 5, 32, 16, True, "HS", 1, 1, 1)]
    return models.MobileNetV3(rows, last_channel=32, num_classes=5)


def efficientnet(models: Any) -> nn.Module:
    row = models.efficientnet.MBConvConfig
    rows = [row(1, 3, 1, 16, 16, 1, 1.0, 1.0), row(4, 5, 2, 16, 16, 2, 1.0, 1.0)]
    return models.EfficientNet(rows, dropout=0.2, last_channel=32, num_classes=5)


def regnet(models: Any) -> nn.Module:
    parameters = models.regnet.BlockParams([1, 2], [16, 32], [8, 8], [1.0, 1.0], [2, 2], 0.25)
    return models.RegNet(parameters, num_classes=5)


def convnext(models: Any) -> nn.Module:
    row = models.convnext.CNBlockConfig
    return models.ConvNeXt([row(16, 32, 1), row(32, None, 1)], num_classes=5)


def resnext(models: Any) -> nn.Module:
    block = models.resnet.Bottleneck
    return models.ResNet(block, [1, 1, 1, 1], 5, groups=4, width_per_group=4)


ARCHITECTURES: dict[str, Make] = {
    "small_cnn": lambda _: build("small_cnn", channels=3),
    "vgg16": lambda _: build("vgg16"),
    "resnet, padded shortcuts": lambda _: CifarResNet(8),
    "resnet": lambda models: models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], 5),
    "resnext": resnext,
    "densenet": lambda models: models.DenseNet(8, (2, 2), 16, num_classes=5),
    "mobilenet_v2": lambda models: models.MobileNetV2(5, 0.5, [[1, 16, 1, 1], [4, 24, 2, 2]]),
    "mobilenet_v3": mobilenet_v3,
    "efficientnet": efficientnet,
    "shufflenet_v2": lambda models: models.ShuffleNetV2([2, 1, 1], [8, 16, 32, 64, 32], 5),
    "regnet": regnet,
    "convnext": convnext,
}
FOLDED = {"densenet": 2, "convnext": 0}  # where not every norm follows a layer


def halved(make: Make, size: int) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """A network with weights of which none is special, its pruned version, and inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make(import_torchvision().models)
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    randomise(model)
    calibrate(model, x)
    model.eval()
    graph = rsprune.trace(model, x)
    slim = rsprune.prune(model, graph, half_drop(graph, 0))
    return model, slim, x


@pytest.mark.filterwarnings("ignore::rsprune.RsPruneWarning")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_export_of(name: str) -> None:
    """ONNX and torch programs, with norms and folded, and safetensors; on two batch sizes."""
    full, slim, x = halved(ARCHITECTURES[name], 32)
    inputs = Inputs("test", slim, x)
    with torch.no_grad():
        plain = capture(slim, inputs)
        folded, count = fold(plain, inputs)
        makers = {"safetensors": safetensors_file(slim, full)}
        for label, program in (("plain", plain), ("folded", folded)):
            makers[f"onnx, {label}"] = onnx_file(program, inputs, slim(x), None)
            makers[f"pt2, {label}"] = pt2_file(program)
        for label, make in makers.items():
            found = compare(slim, make({}).run, [inputs.of(2), inputs.of(5)])
            assert found.difference <= TOLERANCE, label
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in slim.modules())
    assert count == FOLDED.get(name, norms)


@pytest.mark.filterwarnings("ignore::rsprune.RsPruneWarning")
@pytest.mark.parametrize("name", ["resnet18", "densenet121", "shufflenet_v2_x0_5"])
def test_pruned_torchvision_networks_run_in_onnxruntime(name: str, tmp_path: Path) -> None:
    """The file alone gives the outputs of the pruned network, on a batch of another size."""
    _, slim, x = halved(lambda models: models.get_model(name, num_classes=5), 32)
    done = rsprune.export(slim, x, tmp_path / "slim.onnx", fold=True)
    session = onnxruntime.InferenceSession(str(done.path), providers=["CPUExecutionProvider"])
    more = torch.cat([x, x.flip(0), x])
    (found,) = session.run(None, {session.get_inputs()[0].name: more.numpy()})
    with torch.no_grad():
        expected = slim(more)
    assert (torch.tensor(found) - expected).abs().max() <= 1e-4 * expected.abs().max()
