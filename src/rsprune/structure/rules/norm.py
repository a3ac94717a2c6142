"""Normalisation layers: unite the channels with the layer's parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rsprune.structure.layout import Block, Layout
from rsprune.structure.rules.pointwise import Operand, elementwise, first
from rsprune.structure.rules.reduce import kept_whole, mixed
from rsprune.structure.rules.registry import FUNCTIONS, Call, rule


def _affine(
    call: Call,
    shape: Sequence[int],
    layout: Layout,
    parameters: list[Operand],
    *,
    scaled: bool,
    plain: bool,
) -> Layout:
    """Unite with the parameters.

    The result is zero where scale and shift are; without a scale, where the input is too, if the
    norm is ``plain``: if it leaves zeros as they are.
    """

    def zero(zeros: list[bool | None]) -> bool:
        return all(zeros[1:]) and (scaled or (bool(zeros[0]) and plain))

    if not parameters:
        return layout.with_zero(plain)
    return elementwise(call, shape, [(shape, layout), *parameters], zero)


def _along(call: Call, tensor: Tensor, dim: int, ndim: int) -> Operand:
    shape = [1] * ndim
    shape[dim] = tensor.shape[0]
    return shape, call.read(tensor).moved({0: dim})


@rule("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
      "cudnn_batch_norm", "_batch_norm_with_update", "batch_norm")  # fmt: skip
def batch_norm(call: Call) -> None:
    """Statistics per channel, over everything else."""
    x, weight, bias, mean, var = call.args[:5]
    layout = call.read(x)
    if len(layout.blocks) > 1 or (layout.blocks and layout.blocks[0].dims != (1,)):
        others = [d for d in range(x.dim()) if d != 1]
        layout = mixed(call, x, others, "statistics run over it", zero=True)
    scale = [_along(call, t, 1, x.dim()) for t in (weight, bias) if t is not None]
    moments = [_along(call, t, 1, x.dim()) for t in (mean, var) if t is not None]
    joined = _affine(call, x.shape, layout, scale, scaled=weight is not None, plain=True)
    if moments:
        joined = elementwise(call, x.shape, [(x.shape, joined), *moments], first)
    call.write(call.out[0], joined)
    _write_moments(call, joined, dim=0)


def _write_moments(call: Call, layout: Layout, dim: int) -> None:
    """The statistics that torch returns beside the result, one per channel."""
    block = layout.at(1)
    for moment in call.out[1:3]:
        if block is not None and block.dims == (1,) and moment.shape[dim:] == block.labels.shape:
            call.write(moment, Layout((Block((dim,), block.labels),)))


@rule("native_group_norm")
def group_norm(call: Call) -> None:
    """Statistics over the channels of each group; groups stay equal."""
    x, weight, bias, _, channels, _, groups, _ = call.args[:8]
    layout = call.read(x)
    block = layout.at(1)
    if block is not None and len(block.dims) > 1:
        call.freeze(block, "a split dimension meets a group norm")
    elif block is not None and groups != channels:
        if groups > 1:
            call.tie(block.labels.reshape(groups, -1), 0)
        call.statistics(block)
    others = [d for d in range(x.dim()) if d > 1]
    layout = kept_whole(call, layout, others, "statistics run over it")
    scale = [_along(call, t, 1, x.dim()) for t in (weight, bias) if t is not None]
    layout = _affine(
        call, x.shape, layout, scale, scaled=weight is not None, plain=groups == channels
    )
    call.write(call.out[0], layout)
    if groups == channels:
        _write_moments(call, layout, dim=1)


@rule("native_layer_norm")
def layer_norm(call: Call) -> None:
    """Statistics over the last dimensions."""
    x, normalised, weight, bias = call.args[:4]
    scale = [t for t in (weight, bias) if t is not None]
    _over_last(call, x, len(normalised), scale, scaled=weight is not None)


def _over_last(call: Call, x: Tensor, count: int, scale: list[Tensor], *, scaled: bool) -> None:
    over = range(x.dim() - count, x.dim())
    layout = call.read(x)
    for block in layout.blocks:
        if any(d in over for d in block.dims):
            call.statistics(block)
    operands: list[Operand] = [(t.shape, call.read(t)) for t in scale]
    out = call.out[0] if isinstance(call.out, tuple) else call.out
    call.write(out, _affine(call, x.shape, layout, operands, scaled=scaled, plain=False))


def rms_norm(call: Call) -> None:
    """The root mean square over the last dimensions."""
    weight = call.argument(2, "weight")
    scale = [] if weight is None else [weight]
    over = len(call.argument(1, "normalized_shape"))
    _over_last(call, call.args[0], over, scale, scaled=weight is not None)


def local_response_norm(call: Call) -> None:
    """Divides by the energy of neighbouring channels."""
    layout = call.read(call.args[0])
    block = layout.at(1)
    if block is not None:
        call.statistics(block)
    call.write(call.out, layout)


FUNCTIONS[F.rms_norm] = FUNCTIONS[torch.rms_norm] = rms_norm
FUNCTIONS[F.local_response_norm] = local_response_norm


@rule("_weight_norm_interface", "_weight_norm")
def weight_norm(call: Call) -> None:
    """A filter as a length times a direction: a zero filter has none, so no filter may go."""
    v, g = call.args[:2]
    for tensor in (v, g):
        call.freeze(
            call.read(tensor).at(call.argument(2, "dim", 0)), "a zero filter has no direction"
        )
    out = call.out[0] if isinstance(call.out, tuple | list) else call.out
    call.write(out, call.read(v))
