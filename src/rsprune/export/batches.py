"""A model's inputs at any batch size."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from rsprune.shadow import Arguments


class Inputs:
    """Arguments of a model whose first tensor says how large the batch is.

    Attributes:
        arguments: as they were given, by position where that is possible.
        batch: the size of the first tensor's first dimension.
        other: another size, to see that it does not matter.
    """

    def __init__(self, model: nn.Module, arguments: Arguments) -> None:
        args, kwargs = arguments
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
        self.arguments = bound.args, bound.kwargs  # in the order of the model's parameters
        self._by_name = bound.arguments
        first = next(x for x in tree_leaves(arguments) if isinstance(x, Tensor))
        self.batch = first.shape[0] if first.dim() else 0
        self.other = self.batch + 2

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
