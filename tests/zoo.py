"""The networks of torchvision and timm that the structure engine is held against.

Every network gets random weights, and batch norm statistics near those of its data, so that every
channel matters and no gate is saturated.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries: list[torch.library.Library] = []  # torch forgets a library's operators with it


def import_torchvision() -> ModuleType:
    """torchvision, also where its compiled part does not fit this torch.

    No classifier needs the compiled part, but the import looks for two of its operators.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define(f"nms{NMS}")
        library.define(f"qnms{NMS}")
        _libraries.append(library)
        return importlib.import_module("torchvision")


def import_timm() -> ModuleType:
    """timm, which imports torchvision."""
    import_torchvision()
    return importlib.import_module("timm")


@dataclass(frozen=True)
class Entry:
    """One network.

    Attributes:
        name: library and name, as in ``torchvision:resnet50``.
        make: builds it.
        size: height and width of its input.
        most_macs: the largest share of the multiply-accumulates that may be left with half of all
            units; None where the architecture fixes many widths (transformers, feature pyramids).
        statistics: whether normalisations over channels (layer norm, group norm, standardised
            weights) make it inexact by nature.
        refused: whether nothing of it can shrink, by nature.
        slow: left out of the ordinary test run.
    """

    name: str
    make: Callable[[], nn.Module]
    size: int = 64
    most_macs: float | None = 0.35
    statistics: bool = False
    refused: bool = False
    slow: bool = True

    @property
    def installed(self) -> bool:
        needed = {"torchvision", "timm"} if self.name.startswith("timm:") else {"torchvision"}
        return all(importlib.util.find_spec(name) for name in needed)

    def inputs(self) -> Tensor:
        """Two images: batch norm in training mode needs more than one value per channel."""
        generator = torch.Generator().manual_seed(1)
        shape = (2, 3, self.size, self.size)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def build(self) -> nn.Module:
        """The network in float64 and evaluation mode."""
        with warnings.catch_warnings(), _ZeroInit():
            warnings.simplefilter("ignore")
            model = self.make()
        model = model.double()
        randomise(model)
        calibrate(model, self.inputs())
        return model.eval()


class _ZeroInit(TorchDispatchMode):
    """Random initialisation takes minutes on the largest networks and is overwritten anyway."""

    RANDOM = (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in self.RANDOM:
            return args[0].zero_()
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """No parameter keeps a special value: heads, scales and last norms often start at zero."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        fan_in = parameter[0].numel() if parameter.dim() else 1
        if fan_in > 1:
            parameter.normal_(std=math.sqrt(2 / fan_in), generator=generator)
        elif name.endswith("bias"):
            parameter.normal_(std=0.1, generator=generator)
        else:
            parameter.uniform_(0.5, 1.5, generator=generator)


@torch.no_grad()
def calibrate(model: nn.Module, inputs: Tensor) -> None:
    """Give batch norms statistics near those of the data, so that activations stay near one."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    model.train()(inputs)
    generator = torch.Generator().manual_seed(2)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        if norm.running_mean is not None and norm.running_var is not None:
            mean, var = norm.running_mean, norm.running_var
            mean += 0.1 * torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
            var *= 0.5 + torch.rand(var.shape, generator=generator, dtype=var.dtype)
            var += 0.1


def _classifier(name: str, options: dict[str, Any]) -> nn.Module:
    models = import_torchvision().models
    return models.get_model(name, weights=None, **options)


def _segmenter(name: str) -> nn.Module:
    """With its auxiliary head, where it has one."""
    options = {} if name.startswith("lraspp") else {"aux_loss": True}
    return _classifier(name, {"weights_backbone": None, **options})


def _detector_backbone(name: str) -> nn.Module:
    return _classifier(name, {"weights_backbone": None}).backbone


def _timm(name: str, options: dict[str, Any]) -> nn.Module:
    return import_timm().create_model(name, pretrained=False, **options)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CLASSIFIERS = _names("""
    alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161
    densenet169 densenet201 efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3
    efficientnet_b4 efficientnet_b5 efficientnet_b6 efficientnet_b7 efficientnet_v2_l
    efficientnet_v2_m efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5 mnasnet0_75
    mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf
    regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf
    regnet_y_128gf regnet_y_16gf regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf
    regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34 resnet50 resnext101_32x8d
    resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5
    shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s
    swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16 vit_b_32
    vit_h_14 vit_l_16 vit_l_32 wide_resnet101_2 wide_resnet50_2
""")

SEGMENTERS = _names("""
    deeplabv3_mobilenet_v3_large deeplabv3_resnet101 deeplabv3_resnet50 fcn_resnet101 fcn_resnet50
    lraspp_mobilenet_v3_large
""")

DETECTORS = _names("""
    fasterrcnn_resnet50_fpn retinanet_resnet50_fpn ssd300_vgg16 ssdlite320_mobilenet_v3_large
""")

# what differs from the rule, by the beginning of the name
CLASSIFIER_OPTIONS: dict[str, dict[str, Any]] = {
    "googlenet": {"init_weights": False, "aux_logits": True},
    "inception_v3": {"init_weights": False, "aux_logits": True},
    "vit_h_14": {"image_size": 56},
    "vit_": {"image_size": 64},
}
CLASSIFIER_SIZES = {"inception_v3": 299, "maxvit": 224, "vit_h_14": 56}  # the least they take
TRANSFORMERS = ("maxvit", "swin", "vit")
WITH_STATISTICS = (*TRANSFORMERS, "convnext")
# After k shuffles the code takes 1/2^k of a stage's channels on: only so many can be units that
# live and die freely, and eight shuffles leave one.
SHUFFLED = {"shufflenet": 0.45}

# timm: name, then what differs from a convolutional network with batch norm and inputs of 64 x 64
CONVOLUTIONAL = _names("""
    convmixer_768_32 cs3darknet_focus_s cspresnet50 dla34 dla46x_c dpn68 ese_vovnet19b_slim
    fasternet_t0 fastvit_t8 ghostnet_100 ghostnetv2_100 hardcorenas_a hgnetv2_b0 hrnet_w18_small
    lcnet_050 lcnetv2_small legacy_seresnet18 legacy_xception mixnet_s mobilenetv4_conv_small
    mobileone_s0 nasnetalarge pnasnet5large regnety_002 repghostnet_100 repvgg_a0 repvit_m0_9
    res2net50_26w_4s resnest14d resnetv2_50 rexnet_100 selecsls42 skresnet18 starnet_s1
    swiftformer_xs tresnet_m xception41
""")
SMALL = {"img_size": 64}
OTHERS: dict[str, dict[str, Any]] = {
    "inception_resnet_v2": {"size": 96},
    "inception_v4": {"size": 96},
    # attention by convolution along the channels: what it sees cannot shrink
    "ecaresnet26t": {"most_macs": None},
    # weights standardised over what they read: no channel can go without changing all others
    "nf_resnet26": {"most_macs": None, "refused": True},
    "gcresnet33ts": {"statistics": True},
    # response normalisation divides by the mean over the hidden channels
    "convnextv2_atto": {"most_macs": None, "statistics": True},
    "inception_next_atto": {"statistics": True},
    "mambaout_femto": {"statistics": True},
    "rdnet_tiny": {"statistics": True},
    "bat_resnext26ts": {"size": 256, "most_macs": None},
    "botnet26t_256": {"size": 256, "most_macs": None},
    "halonet26t": {"size": 256, "most_macs": None},
    "lambda_resnet26t": {"most_macs": None},
    "efficientvit_m0": {"size": 224, "most_macs": None},
    "iformer_t": {"most_macs": None},
    "levit_128s": {"size": 224, "most_macs": None},
    "mobilenetv4_hybrid_medium": {"most_macs": None},
    "nextvit_small": {"most_macs": None},
    "visformer_tiny": {"most_macs": None, "options": SMALL},
    "resmlp_12_224": {"most_macs": None, "options": SMALL},
    "coatnet_nano_rw_224": {"size": 224, "most_macs": None, "statistics": True},
    "davit_tiny": {"most_macs": None, "statistics": True},
    "edgenext_xx_small": {"most_macs": None, "statistics": True},
    "efficientformer_l1": {"size": 224, "most_macs": None, "statistics": True},
    "efficientvit_b0": {"most_macs": None, "statistics": True},
    "focalnet_tiny_srf": {"most_macs": None, "statistics": True},
    "mixer_s32_224": {"most_macs": None, "statistics": True, "options": SMALL},
    "mobilevit_xxs": {"most_macs": None, "statistics": True},
    "poolformer_s12": {"statistics": True},
    "pvt_v2_b0": {"most_macs": None, "statistics": True},
    "vit_tiny_patch16_224": {"most_macs": None, "statistics": True, "options": SMALL},
    "xcit_nano_12_p16_224": {"most_macs": None, "statistics": True},
}

# diverse and quick: part of every test run
FAST = _names("""
    torchvision:alexnet torchvision:convnext_tiny torchvision:densenet121
    torchvision:efficientnet_b0 torchvision:googlenet torchvision:mnasnet0_5
    torchvision:mobilenet_v2 torchvision:mobilenet_v3_small torchvision:regnet_x_400mf
    torchvision:regnet_y_400mf torchvision:resnet18 torchvision:resnext50_32x4d
    torchvision:shufflenet_v2_x0_5 torchvision:squeezenet1_1 torchvision:swin_t
    torchvision:vit_b_32 segmentation:lraspp_mobilenet_v3_large
    detection:ssdlite320_mobilenet_v3_large timm:cs3darknet_focus_s timm:dla46x_c timm:dpn68
    timm:ghostnet_100 timm:mixnet_s timm:repvgg_a0 timm:resnest14d timm:rexnet_100 timm:skresnet18
""")


def _by_prefix(table: dict[str, Any], name: str, default: Any) -> Any:
    return next((value for prefix, value in table.items() if name.startswith(prefix)), default)


def _entry(name: str, make: Callable[[], nn.Module], **fields: Any) -> Entry:
    return Entry(name, make, slow=name not in FAST, **fields)


def _classifier_entry(name: str) -> Entry:
    return _entry(
        f"torchvision:{name}",
        partial(_classifier, name, _by_prefix(CLASSIFIER_OPTIONS, name, {})),
        size=_by_prefix(CLASSIFIER_SIZES, name, 64),
        most_macs=None if name.startswith(TRANSFORMERS) else _by_prefix(SHUFFLED, name, 0.35),
        statistics=name.startswith(WITH_STATISTICS),
    )


def _timm_entry(name: str, options: dict[str, Any] | None = None, **fields: Any) -> Entry:
    return _entry(f"timm:{name}", partial(_timm, name, options or {}), **fields)


ZOO = (
    *(_classifier_entry(name) for name in CLASSIFIERS),
    *(_entry(f"segmentation:{name}", partial(_segmenter, name)) for name in SEGMENTERS),
    *(
        _entry(
            f"detection:{name}",
            partial(_detector_backbone, name),
            size=300 if name.startswith("ssd300") else 64,
            most_macs=None,
        )
        for name in DETECTORS
    ),
    *(_timm_entry(name) for name in CONVOLUTIONAL),
    *(_timm_entry(name, **fields) for name, fields in OTHERS.items()),
)
