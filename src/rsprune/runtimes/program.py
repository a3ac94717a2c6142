"""A model's computation as ``torch.export`` sees it."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn
from torch.export import ExportedProgram

from rsprune.errors import ExportError
from rsprune.runtimes.batches import Inputs, tensors_of
from rsprune.runtimes.quiet import quiet


def capture(model: nn.Module, inputs: Inputs) -> ExportedProgram:
    """The program of ``model``, in evaluation mode, for batches of any size.

    It shares the model's parameters.
    """
    args, kwargs = inputs.of(max(inputs.batch, 2))  # torch takes a batch of one for a constant

    def captured(*, strict: bool) -> ExportedProgram:
        with quiet():
            return torch.export.export(
                model, args, kwargs, dynamic_shapes=inputs.dynamic(), strict=strict
            )

    try:
        return captured(strict=False)
    except Exception as error:
        with suppress(Exception):  # each way manages some models that the other does not
            return captured(strict=True)
        why = reason(error)
        if "Constraints violated" in why:
            size = len(tensors_of((args, kwargs))[0])
            why = f"its code takes the size of the batch, {size}, for a constant"
        elif "data-dependent" in why:
            why = "its code looks at values, as in 'if x.sum() > 0'"
        raise ExportError(f"The model cannot be exported: {why}.") from error


def reason(error: BaseException) -> str:
    """The first line of what was wrong in the first place; torch wraps it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")
