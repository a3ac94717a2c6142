"""Models by name, and what is said when there is none of that name."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from rsprune.errors import InvalidParameterError, RsPruneError
from rsprune.models import build, input_shape, names
from tests.zoo import import_timm, import_torchvision


@pytest.mark.parametrize("name", names())
def test_own_models_take_their_usual_input(name: str) -> None:
    """Every model runs on a batch of its usual shape."""
    with torch.device("meta"):
        model = build(name).eval()
        scores = model(torch.empty(2, *input_shape(name)))
    assert scores.shape[0] == 2
    assert input_shape(name)[1:] in {(28, 28), (32, 32), (224, 224)}


def test_options_reach_the_model() -> None:
    """Keyword arguments go to the model, own or not."""
    assert build("resnet20", classes=3).linear.out_features == 3
    assert build("torch.nn:Linear", in_features=3, out_features=5).weight.shape == (5, 3)


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")
def test_torchvision() -> None:
    """Random weights, no download, also for the backbones of segmentation models."""
    import_torchvision()
    assert build("torchvision:resnet18", num_classes=7).fc.out_features == 7
    assert isinstance(build("torchvision:fcn_resnet50"), nn.Module)
    assert isinstance(build("torchvision:googlenet"), nn.Module)
    assert input_shape("torchvision:resnet18") == (3, 224, 224)
    with pytest.raises(InvalidParameterError, match=r"Did you mean .*torchvision:resnet18"):
        build("torchvision:resnet19")


@pytest.mark.skipif(find_spec("timm") is None, reason="needs timm")
def test_timm() -> None:
    """timm's models know their input."""
    import_timm()
    assert build("timm:test_resnet", num_classes=7).get_classifier().out_features == 7
    assert input_shape("timm:test_resnet") == (3, 160, 160)
    with pytest.raises(InvalidParameterError, match=r"Did you mean .*timm:resnet18"):
        build("timm:resnet018")


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_library_not_installed(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library, the error says what to install."""
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.models", None)
    with pytest.raises(RsPruneError, match=f"pip install {library}"):
        build(f"{library}:resnet18")


def test_library_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library made for another torch is named as such."""
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(RsPruneError, match=f"made for torch {torch.__version__[:3]}"):
        build("timm:resnet18")


def test_unknown_name() -> None:
    """The known names are listed, and the nearest one is offered."""
    with pytest.raises(InvalidParameterError) as caught:
        build("resnet51")
    message = str(caught.value)
    assert all(name in message for name in (*names(), "torchvision:NAME", "package.module:factory"))
    assert "resnet50" in message.partition("Did you mean")[2]


@pytest.mark.parametrize("name", ["", ":", "vgg16:", ":vgg16"])
def test_half_a_name(name: str) -> None:
    """A name without its parts is unknown."""
    with pytest.raises(InvalidParameterError, match="known model"):
        build(name)


def test_bad_factories() -> None:
    """Modules that do not import, and factories that are missing, fail or return something else."""
    with pytest.raises(InvalidParameterError, match="No module named 'no_such_package'"):
        build("no_such_package:Net")
    with pytest.raises(InvalidParameterError, match=r"a factory in torch.nn.*mean 'Linear'"):
        build("torch.nn:Linaer")
    with pytest.raises(InvalidParameterError, match="can be called"):
        build("math:pi")
    with pytest.raises(InvalidParameterError, match="returns int"):
        build("builtins:int")
    with pytest.raises(RsPruneError, match=r"Building 'torch.nn:Linear' raised TypeError"):
        build("torch.nn:Linear")
    with pytest.raises(InvalidParameterError, match="15 positive integers"):
        build("vgg16", widths=[1, 2, 3])
