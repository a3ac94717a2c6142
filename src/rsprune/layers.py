"""The weights of convolution and linear layers: those that become sparse and that are counted."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def layer_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of the convolution, linear and attention layers of ``model`` by name, each once.

    A weight has the name under which ``model.named_parameters`` lists it.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    found: dict[str, nn.Parameter] = {}
    for module in model.modules():
        for weight in own_weights(module).values():
            found.setdefault(names[weight], weight)
    return found


def own_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of ``module`` itself that multiply its input, by their names in it."""
    found = {name: module._parameters.get(name) for name in weight_names(module)}
    return {name: weight for name, weight in found.items() if weight is not None}


def weight_names(module: nn.Module) -> tuple[str, ...]:
    """The attributes of ``module`` that hold what multiplies its input; some may be None."""
    if isinstance(module, _ConvNd | nn.Linear):
        return ("weight",)
    return _ATTENTION if isinstance(module, nn.MultiheadAttention) else ()


def computed_weights(model: nn.Module) -> list[str]:
    """Weights that are no parameters but made of some: by weight_norm, spectral_norm and such."""
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in weight_names(module)
        if name not in module._parameters
    ]


def contracted_dim(module: nn.Module, name: str) -> int | None:
    """The dimension of the weight ``name`` along which ``module`` sums over its input's channels.

    None if there is none: a depthwise convolution sums over no channels, other parameters neither.
    """
    weight = own_weights(module).get(name)
    if weight is None:
        return None
    transposed = isinstance(module, _ConvTransposeNd)
    if isinstance(module, _ConvNd) and 1 < module.groups == module.in_channels:
        return None
    return 0 if transposed else 1
