"""A model's inputs at any batch size."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from rsprune.errors import InvalidParameterError
from rsprune.shadow import Arguments, bind, check_devices


class Inputs:
    """Arguments of a model whose first tensor says how large the batch is.

    Args:
        owner: whose parameter ``example_inputs`` is, for errors.
        model: whose arguments they are.
        example_inputs: a tensor; a tuple of positional arguments; a dict of keyword arguments.

    Attributes:
        arguments: in the order of the model's parameters, by position where that is possible.
        batch: the size of the first tensor's first dimension.
        other: another size, to see that it does not matter.
    """

    def __init__(self, owner: str, model: nn.Module, example_inputs: Any) -> None:
        args, kwargs = bind(owner, model, example_inputs)
        try:
            bound = inspect.signature(model.forward).bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidParameterError(
                owner, "example_inputs", f"arguments of {type(model).__name__}.forward",
                f"{len(args)} by position and {sorted(kwargs)} by name",
                f"It says: {error}. Of (images, labels), pass the images alone.",
            ) from error  # fmt: skip
        self.arguments: Arguments = bound.args, bound.kwargs
        check_devices(owner, model, self.arguments)
        self._by_name = bound.arguments
        first = tensors_of(self.arguments)[0]
        self.batch = first.shape[0] if first.dim() else 0
        self.other = self.batch + 2
        if not self.batch:
            raise InvalidParameterError(
                owner, "example_inputs", "a batch of at least one input", tuple(first.shape),
                "The first dimension of the first tensor is the batch.",
            )  # fmt: skip

    def of(self, size: int) -> Arguments:
        """The arguments with a batch of this size: theirs, repeated."""

        def resized(value: Any) -> Any:
            if not self._batched(value) or size == self.batch:
                return value
            return value[torch.arange(size, device=value.device) % self.batch]

        args, kwargs = tree_map(resized, self.arguments)
        return args, kwargs

    def dynamic(self) -> dict[str, Any]:
        """What torch's exporter is told: which dimension of which argument is the batch."""
        batch = torch.export.Dim("batch")

        def marks(value: Any) -> Any:
            return {0: batch} if self._batched(value) else None

        return {name: tree_map(marks, value) for name, value in self._by_name.items()}

    def _batched(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.dim() > 0 and value.shape[0] == self.batch


def tensors_of(values: Any) -> list[Tensor]:
    """The tensors among arguments or outputs, in their order."""
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]
