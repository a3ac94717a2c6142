"""The teacher of a fine-tuning: the network before compression, whose scores are imitated."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from rsprune.engine.recipe import Finetune


class Teacher:
    """A network whose scores a smaller one imitates.

    It has many times the cost of its student, and computes most of an epoch. With ``views``, the
    batches of an epoch come again so many epochs later, and their scores are kept in memory: one
    number for every class, image and view. What is not kept, as after a stop, is computed again,
    with the same bits.

    Args:
        network: in evaluation mode.
        settings: of the fine-tuning.
    """

    def __init__(self, network: Callable[[Tensor], Tensor], settings: Finetune) -> None:
        self._network, self._settings = network, settings
        self._kept: dict[tuple[int, int], Tensor] = {}

    def view(self, epoch: int) -> int:
        """The epoch whose order, crops and flips this epoch has."""
        return epoch % self._settings.views if self._settings.views else epoch

    def guide(self, loss: Tensor, scores: Tensor, images: Tensor, batch: tuple[int, int]) -> Tensor:
        """The student's loss, part of it replaced by how far it is from the teacher.

        Args:
            loss: on the labels.
            scores: the student's (B, classes).
            images: that both see.
            batch: the epoch and the number of the batch in it.
        """
        heat = self._settings.temperature
        target = self._scores(images, batch)
        divergence = F.kl_div(
            F.log_softmax(scores / heat, 1), F.log_softmax(target / heat, 1),
            reduction="batchmean", log_target=True,
        )  # fmt: skip
        return torch.lerp(loss, heat**2 * divergence, self._settings.distill)

    @torch.no_grad()
    def _scores(self, images: Tensor, batch: tuple[int, int]) -> Tensor:
        epoch, number = batch
        key = self.view(epoch), number
        if key in self._kept:
            return self._kept[key]
        scores = self._network(images)
        if self._settings.views:
            self._kept[key] = scores
        return scores
