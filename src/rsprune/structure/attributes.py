"""The attributes in which torch's own modules remember their widths."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd


def widths(module: nn.Module) -> dict[str, Any]:
    """The attributes of ``module`` that its parameters' shapes determine, as they should be."""
    if isinstance(module, _ConvNd):
        return _convolution(module)
    if isinstance(module, nn.Linear):
        return {"out_features": module.weight.shape[0], "in_features": module.weight.shape[1]}
    if isinstance(module, nn.Bilinear):
        names = ("out_features", "in1_features", "in2_features")
        return dict(zip(names, module.weight.shape, strict=True))
    if isinstance(module, _NormBase):
        known = [t for t in (module.weight, module.running_mean) if t is not None]
        return {"num_features": known[0].shape[0]} if known else {}
    if isinstance(module, nn.GroupNorm) and module.weight is not None:
        channels = module.weight.shape[0]
        alone = module.num_groups == module.num_channels
        return {"num_channels": channels} | ({"num_groups": channels} if alone else {})
    if isinstance(module, nn.LayerNorm | nn.RMSNorm) and module.weight is not None:
        return {"normalized_shape": tuple(module.weight.shape)}
    if isinstance(module, nn.PReLU):
        return {"num_parameters": module.weight.shape[0]}
    if isinstance(module, nn.Embedding):
        return {"num_embeddings": module.weight.shape[0], "embedding_dim": module.weight.shape[1]}
    if isinstance(module, nn.MultiheadAttention):
        return _attention(module)
    if isinstance(module, nn.RNNBase) and not module.proj_size:
        inputs, hidden = module.all_weights[0][:2]
        return {"hidden_size": hidden.shape[1], "input_size": inputs.shape[1]}
    return {}


def _convolution(module: _ConvNd) -> dict[str, Any]:
    first, second = module.weight.shape[:2]
    groups = module.groups
    if isinstance(module, _ConvTransposeNd):
        if groups > 1 and module.in_channels == groups:
            groups = first
        return {"in_channels": first, "out_channels": second * groups, "groups": groups}
    if groups > 1 and module.in_channels == groups:
        groups = first // (module.out_channels // groups)
    return {"in_channels": second * groups, "out_channels": first, "groups": groups}


def _attention(module: nn.MultiheadAttention) -> dict[str, Any]:
    embed = module.out_proj.weight.shape[0]
    found = {"embed_dim": embed, "num_heads": embed // module.head_dim}
    if module._qkv_same_embed_dim:
        return found | {"kdim": embed, "vdim": embed}
    assert module.k_proj_weight is not None
    assert module.v_proj_weight is not None
    return found | {"kdim": module.k_proj_weight.shape[1], "vdim": module.v_proj_weight.shape[1]}


def watch_widths(model: nn.Module, notice: Callable[[], None]) -> None:
    """Call ``notice`` whenever code outside torch reads an attribute that ``resize`` would change.

    The modules of ``model`` get classes of their own for that.
    """
    torchs = os.path.dirname(torch.__file__) + os.sep
    classes: dict[tuple[type, tuple[str, ...]], type] = {}

    def watched(name: str) -> property:
        def read(module: nn.Module) -> Any:
            if not sys._getframe(1).f_code.co_filename.startswith(torchs):
                notice()
            return vars(module)[name]

        return property(read, lambda module, value: vars(module).update({name: value}))

    for module in list(model.modules()):
        names = tuple(name for name in widths(module) if name in vars(module))
        kind = type(module)
        if names:
            if (kind, names) not in classes:
                fields = {name: watched(name) for name in names} | {"__module__": kind.__module__}
                classes[kind, names] = type(kind.__name__, (kind,), fields)
            module.__class__ = classes[kind, names]


def resize(model: nn.Module) -> None:
    """Make the attributes of all modules of ``model`` agree with their parameters."""
    modes = {module: module.training for module in model.modules()}
    model.eval()  # in training mode, to look at a parametrized weight may change it
    for module in modes:
        for name, value in widths(module).items():
            if getattr(module, name, value) != value:
                setattr(module, name, value)
    for module, mode in modes.items():
        module.training = mode
