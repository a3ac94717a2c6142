"""A clock that needs no machine: the time of a model follows from its layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn

from rsprune.compression.calls import Call, find_uses
from rsprune.shadow import Arguments


class PaperClock:
    """A nanosecond for every multiplication, and more where widths are odd.

    Args:
        model: the given model.
        x: its input.
        liked: numbers of input channels that are no multiple of this cost ``odd`` times as much.
        odd: the penalty, which layers that are timed alone do not show.
        fixed: seconds of every model that no width changes.
        real: whether the model's code looks at values.

    Attributes:
        points: how many layers were timed.
        measured: how many models were, the given one aside.
    """

    def __init__(
        self, model: nn.Module, x: Tensor, *, liked: int = 1, odd: float = 1.0, fixed: float = 0.0,
        real: bool = False,
    ) -> None:  # fmt: skip
        self.model, self.real = model, real
        self.arguments: Arguments = ((x,), {})
        self.liked, self.odd, self.fixed = liked, odd, fixed
        self.points: list[tuple[Call, int, int]] = []
        self.measured = 0

    def layer(self, call: Call, inputs: int, outputs: int) -> float:
        self.points.append((call, inputs, outputs))
        return seconds(call, inputs, outputs)

    def models(self, models: Sequence[nn.Module]) -> list[float]:
        self.measured += len(models)
        return [self._whole(model) for model in (self.model, *models)]

    def _whole(self, model: nn.Module) -> float:
        shapes = dict(model.named_parameters())
        total = self.fixed
        for use in find_uses(model, self.arguments, real=self.real):
            shape = shapes[use.parameter].shape
            inputs = round(shape[use.inputs.dim] * use.inputs.times)
            outputs = round(shape[use.outputs.dim] * use.outputs.times)
            odd = inputs % self.liked and inputs > 3
            total += seconds(use.call, inputs, outputs) * (self.odd if odd else 1.0)
        return total


def seconds(call: Call, inputs: int, outputs: int) -> float:
    """A nanosecond for every multiplication of a layer; strides count as they are."""
    image = prod(size // step for size, step in zip(call.image, call.stride, strict=True))
    return 1e-9 * call.batch * image * prod(call.weight_shape(inputs, outputs))
