"""Whether a file computes what its model computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rsprune.errors import ExportError
from rsprune.runtimes.batches import tensors_of
from rsprune.shadow import Arguments

TOLERANCE = 1e-4  # relative to the largest output
_DEAF = 0.1  # a difference between a model's outputs, as large, that a quantised one has to see


@dataclass(frozen=True)
class Comparison:
    """A model's outputs and a file's on the same batches.

    Attributes:
        difference: the largest, relative to the model's largest output in a batch.
        outputs: the first output of the model and of the file, for each batch.
    """

    difference: float
    outputs: tuple[tuple[Tensor, Tensor], ...]

    @property
    def agreement(self) -> float | None:
        """The share of inputs (or of their places) with the same highest score along dimension 1.

        None if there are no scores.
        """
        if self.outputs[0][0].dim() < 2:
            return None
        same = [(a.argmax(1) == b.argmax(1)).flatten() for a, b in self.outputs]
        return torch.cat(same).double().mean().item()


def compare(model: nn.Module, run: Callable[..., Any], batches: Iterable[Arguments]) -> Comparison:
    """Run both on every batch.

    Args:
        model: in evaluation mode.
        run: the file; it is called as the model is.
        batches: arguments for both.
    """
    differences: list[float] = []
    firsts: list[tuple[Tensor, Tensor]] = []
    for args, kwargs in batches:
        expected, found = (tensors_of(call(*args, **kwargs)) for call in (model, run))
        shapes = [[tuple(x.shape) for x in outputs] for outputs in (expected, found)]
        if shapes[0] != shapes[1]:
            raise ExportError(
                f"The file gives outputs of the shapes {shapes[1]}, the model {shapes[0]}."
            )
        if not expected:
            raise ExportError("The model has no output that is a tensor.")
        differences += map(_difference, expected, found)
        firsts.append((expected[0], found[0]))
    worst = max(differences, key=lambda x: math.inf if math.isnan(x) else x)
    return Comparison(worst, tuple(firsts))


def _difference(expected: Tensor, found: Tensor) -> float:
    if not expected.numel():
        return 0.0
    want, have = expected.detach().double(), found.double()
    largest = want.where(want.isfinite(), 0).abs().max().item()
    gap = (want - have).where(want != have, 0).abs().max().item()  # equal infinities differ by NaN
    return gap / largest if largest else gap


def check_parity(found: Comparison) -> None:
    """Refuse a file that computes something else, or NaN."""
    if not found.difference <= TOLERANCE:
        raise ExportError(
            f"The file would not compute what the model computes: its outputs differ by "
            f"{found.difference:.2g} of the largest, and {TOLERANCE:g} is allowed. Is the model "
            "free of randomness and in double or single precision?"
        )


def check_sanity(compared: Comparison) -> None:
    """Refuse a quantised file whose outputs are NaN, or the same for different inputs."""
    if any(found.isnan().any() for _, found in compared.outputs):
        what = "are not all numbers"
    elif any(
        _spread(expected) > _DEAF * expected.abs().max() and not _spread(found)
        for expected, found in compared.outputs
    ):
        what = "do not depend on the input"
    else:
        return
    raise ExportError(
        f"The quantised model is broken: its outputs {what}. Calibrate with more, and typical, "
        "inputs, or export it without int8."
    )


def _spread(outputs: Tensor) -> Tensor:
    """By how much the outputs of a batch differ from one another."""
    return (outputs.amax(0) - outputs.amin(0)).max()
