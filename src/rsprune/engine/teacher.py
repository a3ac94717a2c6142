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
        self._kept: dict[tuple[int, int], Tensor] = {}  # scores by view and batch
        self._marks: dict[int, Batch] = {}  # of the first batch of every view

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
        views = self._settings.views
        if not views:
            return self._network(images)
        key = self.view(epoch), number
        if number == 0:  # a GPU waits for this: once an epoch will do
            self._check(key[0], (images[:, 0, images.shape[2] // 2].clone(), labels))
        if key in self._kept:
            return self._kept[key]
        scores = self._network(images)
        if epoch + views < self._settings.epochs:
            self._kept[key] = scores
        return scores

    def _check(self, view: int, mark: Batch) -> None:
        """Refuse a view that comes again with another first batch.

        Args:
            view: its number.
            mark: of the first batch, a row of pixels of every image, and the labels.
        """
        if not all(map(torch.equal, mark, self._marks.setdefault(view, mark))):
            raise DataError(
                "finetune.views needs training data whose batches are a function of seed and "
                f"epoch, and epoch {view} did not come out again as it was. Mend the data's "
                "epoch(), or set finetune.views = 0."
            )
