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
    batches of an epoch come again so many epochs later, and their scores are kept on disk until
    then: a number for every class, image and view. Those that are missing, as after a kill, are
    computed again, with the same bits.

    Args:
        network: in evaluation mode.
        settings: of the fine-tuning.
        file: what the names of the files begin with, one for every view.
    """

    def __init__(self, network: Callable[[Tensor], Tensor], settings: Finetune, file: Path) -> None:
        self._network, self._settings, self._file = network, settings, file
        self._kept: dict[int, dict[str, Tensor]] = {}  # by view: scores by batch, and marks
        self._unsaved, self._checked = False, -1  # the last epoch with a look at the marks

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
        target = self._scores(batch, at).float()
        divergence = F.kl_div(
            F.log_softmax(scores / heat, 1), F.log_softmax(target / heat, 1),
            reduction="batchmean", log_target=True,
        )  # fmt: skip
        return torch.lerp(loss, heat**2 * divergence, self._settings.distill)

    @torch.no_grad()
    def _scores(self, batch: Batch, at: tuple[int, int]) -> Tensor:
        (images, _), (epoch, number) = batch, at
        views = self._settings.views
        if not views:
            return self._network(images)
        kept, key = self._of(self.view(epoch), images.device), str(number)
        if key not in kept and epoch + views < self._settings.epochs:
            kept[key], self._unsaved = self._network(images), True
        self._check(batch, at, kept)
        return kept[key] if key in kept else self._network(images)

    def save(self, epoch: int) -> None:
        """Write what was computed in an epoch and comes again.

        It is read again then: many small tensors that stay, among activations that come and go,
        leave holes that no activation fits into.
        """
        if self._unsaved:
            view = self.view(epoch)
            own = {name: tensor.contiguous() for name, tensor in self._kept[view].items()}
            write_tensors(self._path(view), own, {})
            self._unsaved = False
        self._kept.clear()

    def _path(self, view: int) -> Path:
        return self._file.with_name(f"{self._file.name}.view-{view}.safetensors")

    def _of(self, view: int, device: torch.device) -> dict[str, Tensor]:
        """What is kept of a view, from this epoch or an earlier one."""
        if view not in self._kept:
            path = self._path(view)
            try:
                found = load_file(path) if path.exists() else {}
            except (SafetensorError, OSError) as error:
                raise RunError(
                    f"'{path}' is damaged: {error}. Delete it to compute its scores again."
                ) from error
            self._kept[view] = {name: tensor.to(device) for name, tensor in found.items()}
        return self._kept[view]

    def _check(self, batch: Batch, at: tuple[int, int], kept: dict[str, Tensor]) -> None:
        """Refuse a view that comes again with other batches than those of the kept scores.

        Of every batch a pixel and the label of each image are kept. A GPU waits for a comparison:
        the first batch of an epoch will do, or the first after a stop.
        """
        (images, labels), (epoch, number) = batch, at
        middle, left = images.shape[2] // 2, images.shape[3] // 4
        mark = {"pixels": images[:, 0, middle, left], "labels": labels}
        own = {f"{name}/{number}": tensor.clone() for name, tensor in mark.items()}
        known = {name: kept.setdefault(name, tensor) for name, tensor in own.items()}
        if epoch == self._checked:
            return
        self._checked = epoch
        if not all(torch.equal(tensor, known[name]) for name, tensor in own.items()):
            view = self.view(epoch)
            raise DataError(
                "finetune.views needs training data whose batches are a function of seed and "
                f"epoch, and epoch {view} did not come out again as it was. Mend the data's "
                "epoch(), or set finetune.views = 0; if files of the run were changed, delete "
                f"'{self._path(view)}'."
            )
