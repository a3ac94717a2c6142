"""The teacher of a fine-tuning: the network before compression, whose scores are imitated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from rsprune.data import Batch
from rsprune.engine.recipe import Finetune
from rsprune.errors import DataError, RunError
from rsprune.files import write_tensors


class Teacher:
    """A network whose scores a smaller one imitates.

    It costs many times as much as its student, and takes most of an epoch. With ``views``, the
    batches of an epoch come again so many epochs later, and their scores are kept until then: a
    number for every class, image and view, on the device that computes, and after every epoch on
    disk. Those that a stop within an epoch lost are computed again, with the same bits.

    Args:
        network: in evaluation mode.
        settings: of the fine-tuning.
        file: what the names of the files begin with, one for every view.
    """

    def __init__(self, network: Callable[[Tensor], Tensor], settings: Finetune, file: Path) -> None:
        self._network, self._settings, self._file = network, settings, file
        self._kept: dict[int, dict[str, Tensor]] = {}  # by view: scores by batch, and the mark
        self._unsaved = False

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
        kept = self._of(self.view(epoch), images.device)
        if number == 0:  # a GPU waits for this: once an epoch will do
            self._check(epoch, {"pixels": images[:, 0, images.shape[2] // 2], "labels": labels})
        if str(number) in kept:
            return kept[str(number)]
        scores = self._network(images)
        if epoch + views < self._settings.epochs:
            kept[str(number)] = scores
            self._unsaved = True
        return scores

    def save(self, epoch: int) -> None:
        """Write what was computed in an epoch and comes again."""
        if self._unsaved:
            view = self.view(epoch)
            own = {name: tensor.contiguous() for name, tensor in self._kept[view].items()}
            write_tensors(self._path(view), own, {})
            self._unsaved = False

    def _path(self, view: int) -> Path:
        return self._file.with_name(f"{self._file.name}.view-{view}.safetensors")

    def _of(self, view: int, device: torch.device) -> dict[str, Tensor]:
        """What is kept of a view, in memory or from before a stop."""
        if view not in self._kept:
            path = self._path(view)
            try:
                self._kept[view] = load_file(path, str(device)) if path.exists() else {}
            except (SafetensorError, OSError) as error:
                raise RunError(
                    f"'{path}' is damaged: {error}. Delete it to compute its scores again."
                ) from error
        return self._kept[view]

    def _check(self, epoch: int, mark: dict[str, Tensor]) -> None:
        """Refuse a view that comes again with another first batch.

        Args:
            epoch: whose view it is.
            mark: of the first batch, a row of pixels of every image, and the labels.
        """
        kept = self._kept[self.view(epoch)]
        if not all(
            torch.equal(own, kept.setdefault(name, own.clone())) for name, own in mark.items()
        ):
            raise DataError(
                "finetune.views needs training data whose batches are a function of seed and "
                f"epoch, and epoch {self.view(epoch)} did not come out again as it was. Mend the "
                "data's epoch(), or set finetune.views = 0."
            )
