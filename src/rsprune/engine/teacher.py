"""The teacher of a fine-tuning: the network before compression, whose scores are imitated."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from rsprune.data import Batch
from rsprune.engine.recipe import Finetune
from rsprune.errors import DataError


class Teacher:
    """A network whose scores a smaller one imitates.

    It costs many times as much as its student, and takes most of an epoch. With ``views``, the
    batches of an epoch come again so many epochs later, and their scores are kept until then: a
    number for every class, image and view, on the device that computes. Scores that are missing,
    as after a stop, are computed again, with the same bits.

    Args:
        network: in evaluation mode.
        settings: of the fine-tuning.
    """

    def __init__(self, network: Callable[[Tensor], Tensor], settings: Finetune) -> None:
        self._network, self._settings = network, settings
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # scores and labels

    def view(self, epoch: int) -> int:
        """The epoch whose order, crops and flips this epoch has."""
        return epoch % self._settings.views if self._settings.views else epoch

    def guide(self, loss: Tensor, scores: Tensor, batch: Batch, at: tuple[int, int]) -> Tensor:
        """The student's loss, part of it replaced by how far it is from the teacher.

        Args:
            loss: on the labels.
            scores: the student's (B, classes).
            batch: what both see.
            at: the epoch and the number of the batch in it.
        """
        heat = self._settings.temperature
        target = self._scores(batch, at)
        divergence = F.kl_div(
            F.log_softmax(scores / heat, 1), F.log_softmax(target / heat, 1),
            reduction="batchmean", log_target=True,
        )  # fmt: skip
        return torch.lerp(loss, heat**2 * divergence, self._settings.distill)

    @torch.no_grad()
    def _scores(self, batch: Batch, at: tuple[int, int]) -> Tensor:
        (images, labels), (epoch, number) = batch, at
        key = self.view(epoch), number
        if key in self._kept:
            scores, same = self._kept[key]
            if number == 0 and not torch.equal(labels, same):  # a GPU waits: once an epoch will do
                raise DataError(
                    "finetune.views needs training data whose batches are a function of seed and "
                    f"epoch, and epoch {key[0]} did not come out again as it was. Mend the data's "
                    "epoch(), or set finetune.views = 0."
                )
            return scores
        scores = self._network(images)
        views = self._settings.views
        if views and epoch + views < self._settings.epochs:
            self._kept[key] = scores, labels
        return scores
