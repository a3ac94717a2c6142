"""The networks of torchvision and timm that the structure engine is held against.

Every network gets random weights, and batch norm statistics near those of its data, so that every
channel matters and no gate is saturated. Half of the units of every group are dropped at random;
the pruned network must then compute what the full one computes with these units set to zero.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import rsprune

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


@dataclass
class Outcome:
    """What came of halving one network.

    ``difference`` and ``training_difference`` compare the pruned network with the zeroed one in
    evaluation and in training mode. ``effect`` is how much zeroing changed the outputs at all.
    Where norms run over channels, ``exact_difference`` is that of dropping only the groups they do
    not see. ``warnings`` are those of ``trace``; ``left_whole`` those of ``prune``, which has to
    drop what it is told.
    """

    groups: int = 0
    units: int = 0
    statistics: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)
    left_whole: list[str] = field(default_factory=list)
    params: float = 1.0
    macs: float = 1.0
    counts: list[tuple[int, int]] = field(default_factory=list)
    difference: float = math.nan
    training_difference: float = math.nan
    exact_difference: float = math.nan
    effect: float = math.nan
    trace_seconds: float = math.nan
    prune_seconds: float = math.nan


def examine(entry: Entry) -> Outcome:
    """Halve one network and compare it with the zeroed one."""
    model, inputs, found = entry.build(), entry.inputs(), Outcome()
    with collected(found.warnings):
        graph, found.trace_seconds = timed(lambda: rsprune.trace(model, inputs))
    drop = half(graph)
    with collected(found.left_whole):
        slim, found.prune_seconds = timed(lambda: rsprune.prune(model, graph, drop=drop))
    prunable = [group for group in graph.groups if group.prunable]
    found.groups, found.units = len(prunable), sum(group.size for group in prunable)
    found.statistics = tuple(graph.statistics)
    found.frozen = tuple(f"{f.operator} in {f.module}: {f.reason}" for f in graph.frozen)
    found.params = count_parameters(slim) / count_parameters(model)

    full, flops = evaluate(model, inputs)
    small, small_flops = evaluate(slim, inputs)
    found.macs = small_flops / flops
    for net, counted in ((model, flops), (slim, small_flops)):
        found.counts.append((2 * rsprune.profile(net, inputs).macs, counted))
    zeroed = zero(model, graph, drop)
    expected, _ = evaluate(zeroed, inputs)
    found.difference = relative_difference(small, expected)
    found.effect = relative_difference(full, expected)
    found.training_difference = relative_difference(
        train_step(slim, inputs), train_step(zeroed, inputs, backward=False)
    )
    if graph.statistics:
        del slim, zeroed
        drop = unseen(graph, drop)
        with collected(found.left_whole):
            slim = rsprune.prune(model, graph, drop=drop)
        small, _ = evaluate(slim, inputs)
        expected, _ = evaluate(zero(model, graph, drop), inputs)
        found.exact_difference = relative_difference(small, expected)
    return found


@contextmanager
def collected(messages: list[str]) -> Iterator[None]:
    """Put our own warnings into the list."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    ours = [w for w in caught if issubclass(w.category, rsprune.RsPruneWarning)]
    messages.extend(str(warning.message) for warning in ours)


def unseen(graph: Any, drop: dict[str, list[int]]) -> dict[str, list[int]]:
    """The part of ``drop`` that no normalisation over channels sees."""
    seen = {
        group.name
        for group in graph.groups
        for slot in group.slots
        if slot.tensor.rpartition(".")[0] in graph.statistics
    }
    return {name: units for name, units in drop.items() if name not in seen}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def half(graph: Any) -> dict[str, list[int]]:
    """Half of the units of every group, at random."""
    generator = torch.Generator().manual_seed(3)
    return {
        group.name: torch.randperm(group.size, generator=generator)[: group.size // 2].tolist()
        for group in graph.groups
        if group.prunable and group.size > 1
    }


@torch.no_grad()
def zero(model: nn.Module, graph: Any, drop: dict[str, list[int]]) -> nn.Module:
    """A copy of the full network in which the dropped units are zero."""
    model = copy.deepcopy(model)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for group in graph.groups:
        for slot in group.slots if group.name in drop else ():
            where = [index for unit in drop[group.name] for index in slot.positions[unit]]
            tensors[slot.tensor].index_fill_(slot.dim, torch.tensor(where, dtype=torch.int64), 0)
    return model


def evaluate(model: nn.Module, inputs: Tensor) -> tuple[list[Tensor], int]:
    """Outputs in evaluation mode, and the floating point operations."""
    model.eval()
    with torch.no_grad(), plain_attention(), FlopCounterMode(display=False) as counter:
        outputs = model(inputs)
    return leaves(outputs), counter.get_total_flops()


def train_step(model: nn.Module, inputs: Tensor, backward: bool = True) -> list[Tensor]:
    """Outputs in training mode without dropout; a backward pass gives finite gradients."""
    model.train()
    for module in model.modules():
        if type(module).__name__ in RANDOM_MODULES:
            module.eval()
        if hasattr(module, "drop_rate"):  # functional dropout, in timm's networks
            module.drop_rate = 0.0
    with torch.set_grad_enabled(backward):
        outputs = leaves(model(inputs))
    if backward:
        torch.stack([output.square().mean() for output in outputs]).sum().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert grads
        assert all(grad.isfinite().all() for grad in grads)
        model.zero_grad()
    model.eval()
    return [output.detach() for output in outputs]


RANDOM_MODULES = {"Dropout", "Dropout1d", "Dropout2d", "StochasticDepth", "DropPath"}


@contextmanager
def plain_attention() -> Iterator[None]:
    """Attention as matrix products: the counter does not know the fused operators of the CPU."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def leaves(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]


def relative_difference(ours: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of any output, relative to that output's largest value."""
    worst = 0.0
    for mine, other in zip(ours, expected, strict=True):
        assert mine.shape == other.shape
        largest = other.abs().max().clamp_min(torch.finfo(other.dtype).tiny)
        difference = ((mine - other).abs().max() / largest).item()
        worst = max(worst, math.inf if math.isnan(difference) else difference)
    return worst


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


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
