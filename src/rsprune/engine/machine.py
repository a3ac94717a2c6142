"""The device, the precision and the processes of a run: what accelerate knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import broadcast
from torch import Tensor, nn

from rsprune.engine.memory import keep_freed_memory
from rsprune.engine.recipe import Recipe
from rsprune.engine.small_maps import SmallMaps
from rsprune.engine.winograd import Winograd
from rsprune.errors import InvalidParameterError


class Machine:
    """Where a run computes; made once a run."""

    def __init__(self, recipe: Recipe) -> None:
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        AcceleratorState._reset_state()  # of an earlier run with another precision
        self._accelerator = Accelerator(
            mixed_precision=recipe.precision, cpu=recipe.device == "cpu"
        )
        if recipe.precision == "fp16" and self.device.type == "cpu":
            raise InvalidParameterError(
                "the recipe", "precision", "no or bf16 on a CPU", "fp16", "Only GPUs train in fp16."
            )
        if self.device.type == "cpu":
            keep_freed_memory()
        self._compile, self._by_winograd = recipe.compile, recipe.winograd
        last = recipe.channels_last or recipe.winograd
        self.memory_format = torch.channels_last if last else torch.preserve_format

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self._accelerator.device
        return device

    @property
    def main(self) -> bool:
        """Whether this process writes files and talks."""
        return bool(self._accelerator.is_main_process)

    @property
    def shard(self) -> tuple[int, int]:
        """The number of this process and of all."""
        return self._accelerator.process_index, self._accelerator.num_processes

    def place(self, model: nn.Module) -> nn.Module:
        """The model, moved in place to the device and the memory layout."""
        return model.to(self.device, memory_format=self.memory_format)  # type: ignore[call-overload, no-any-return]

    def forward(self, model: nn.Module) -> Any:
        """What computes the model's scores in training: it alone, or with other processes'."""
        # prepare() would leave its traces in the model where one process needs none of it
        return self.compiled(self._accelerator.prepare(model) if self.shard[1] > 1 else model)

    def compiled(self, model: nn.Module) -> Any:
        """The model as ``torch.compile`` makes it, where the recipe asks for that."""
        # Kernels for sizes in general, which it makes once a size changes, would depend on where a
        # run was resumed, and take longer.
        return torch.compile(model, dynamic=False) if self._compile else model

    def prepare(self, optimizer: torch.optim.Optimizer) -> Any:
        """The optimizer with the loss scaling that half precision needs."""
        return self._accelerator.prepare(optimizer)

    @contextmanager
    def fast(self) -> Iterator[None]:
        """Mixed precision, and the convolutions that are faster than torch's own."""
        convolutions = self._winograd if self._by_winograd else self._small_maps
        with self._accelerator.autocast(), convolutions:
            yield

    @cached_property
    def _small_maps(self) -> AbstractContextManager[Any]:
        """Where bfloat16 gains by it."""
        fits = self._accelerator.mixed_precision == "bf16" and self.device.type == "cpu"
        return SmallMaps() if fits else nullcontext()

    @cached_property
    def _winograd(self) -> Winograd:
        """Made for training alone: to evaluate, no compiler is needed."""
        if self.device.type != "cpu":
            raise InvalidParameterError(
                "the recipe", "winograd", "false on a GPU", True,
                "Leave it out, or set device = 'cpu'.",
            )  # fmt: skip
        return Winograd()

    def backward(self, loss: Tensor) -> None:
        """Gradients of a loss."""
        self._accelerator.backward(loss)

    def clip(self, model: nn.Module, norm: float) -> None:
        """Scale the gradients down to a norm."""
        self._accelerator.clip_grad_norm_(model.parameters(), norm)

    def total(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        summed: Tensor = self._accelerator.reduce(values, reduction="sum")
        return summed

    def agree(self, module: nn.Module) -> None:
        """Give all processes the first one's buffers; norms took statistics of their own images."""
        if self.shard[1] > 1:
            for buffer in module.buffers():
                broadcast(buffer)

    def wait(self) -> None:
        """Until all processes are here."""
        self._accelerator.wait_for_everyone()

    def release(self, model: nn.Module) -> None:
        """End a stage: forget what was prepared for it."""
        self._accelerator.unwrap_model(model, keep_fp32_wrapper=False)
        self._accelerator.free_memory()
