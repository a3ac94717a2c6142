"""Training: it learns, and stopped at any step it goes on with the same bits."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rsprune
from rsprune.compression import unit_slots
from rsprune.data import Data, load
from rsprune.engine.evaluate import accuracy
from rsprune.engine.machine import Machine
from rsprune.engine.recipe import Dense, Explore, Finetune, Recipe, Training
from rsprune.engine.teacher import Teacher
from rsprune.engine.train import Job, train
from rsprune.errors import DataError, DivergenceError, RunError
from rsprune.models import SmallCNN
from rsprune.optim import ProxSVRG
from tests.compiler import compiled


class Watch:
    """Counts steps, and asks to stop after a number of them."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.left = stop_after

    @property
    def stopping(self) -> bool:
        if self.left is not None:
            self.left -= 1
        return self.left is not None and self.left <= 0

    def event(self, event: dict[str, Any]) -> None:
        self.events.append({k: v for k, v in event.items() if k != "seconds"})

    def step(self, done: int, total: int, loss: float, accuracy: float) -> None:
        assert 0 < done <= total
        assert loss >= 0
        assert 0 <= accuracy <= 1


@pytest.fixture(scope="module")
def data() -> Data:
    return load("digits")


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(Recipe(threads=1))


def network(width: int = 8) -> SmallCNN:
    torch.manual_seed(0)
    return SmallCNN(width=width)


def job(tmp_path: Path, settings: Training, **more: Any) -> Job:
    stage = type(settings).__name__.lower().replace("dense", "baseline")
    return Job(stage, 0, settings, 0, tmp_path / "checkpoint.safetensors", 1e9, **more)


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


SHORT = {"epochs": 2, "batch_size": 128}
SETTINGS: dict[str, Training] = {
    "sgd": Dense(**SHORT),
    "averaged": Dense(**SHORT, ema=0.9, schedule="one-cycle", label_smoothing=0.1, clip=1.0),
    "growing": Dense(**SHORT, small=0.5),
    "distilled": Finetune(**SHORT, distill=0.5),
    "distilled-growing": Finetune(**SHORT, distill=0.5, small=0.5),
    "distilled-views": Finetune(epochs=5, batch_size=128, distill=0.5, views=2),
    **{
        name: Explore(
            **SHORT,
            optimizer=name,
            schedule="step",
            prox_epochs=0.5,
            lam=1.0 if name == "hspg" else 0.05,
        )
        for name in ("obprox-sg", "prox-sg", "rda", "prox-svrg", "hspg")
    },
}


@pytest.mark.parametrize("name", [*SETTINGS, pytest.param("winograd", marks=compiled)])
def test_a_training_that_was_stopped_ends_with_the_same_bits(
    name: str, data: Data, machine: Machine, tmp_path: Path
) -> None:
    """Stopped within the first epoch, within the second, and after its end."""
    settings = SETTINGS.get(name, SETTINGS["growing"])
    width = 8
    if name == "winograd":
        machine, width = Machine(Recipe(threads=1, winograd=True, device="cpu")), 40
    teacher = SmallCNN(width=16).eval() if name.startswith("distilled") else None
    whole, watch = network(width), Watch()
    train(whole, data, job(tmp_path, settings, teacher=teacher), machine, watch)
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    heard: list[dict[str, Any]] = []
    for stop in (3, 12, None, None):
        part, own = network(width), Watch(stop)
        with pytest.raises(KeyboardInterrupt) if stop else nullcontext():
            train(part, data, job(pieces, settings, teacher=teacher), machine, own)
        heard += own.events
    for key, tensor in state(whole).items():
        assert torch.equal(tensor, state(part)[key]), key
    assert heard == watch.events


class Counted(nn.Module):
    """A teacher that counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.network, self.asked = SmallCNN(width=16).eval(), 0

    def forward(self, images: Tensor) -> Tensor:
        self.asked += 1
        scores: Tensor = self.network(images)
        return scores


def test_a_teacher_sees_every_view_once(machine: Machine, tmp_path: Path) -> None:
    """With as many views as epochs nothing changes; with fewer, images and scores repeat."""
    data = load("digits", augment="crop")
    steps = data.train.steps(128)
    asked, losses = {}, {}
    for views in (0, 4, 2):
        watch, teacher = Watch(), Counted()
        settings = Finetune(epochs=4, batch_size=128, distill=0.5, views=views)
        (tmp_path / str(views)).mkdir()
        train(
            network(), data, job(tmp_path / str(views), settings, teacher=teacher), machine, watch
        )
        asked[views] = teacher.asked
        losses[views] = [event["loss"] for event in watch.events]
    assert asked == {0: 4 * steps, 4: 4 * steps, 2: 2 * steps}
    assert losses[0] == losses[4]
    assert losses[0][:2] == losses[2][:2]
    assert losses[0][2:] != losses[2][2:]


def test_a_teacher_sees_images_at_full_size(data: Data, machine: Machine, tmp_path: Path) -> None:
    """Its scores are kept by view, whose images may be smaller when it comes again."""
    sides: dict[str, list[int]] = {"student": [], "teacher": []}

    def noting(who: str) -> Callable[..., None]:
        return lambda _, inputs: sides[who].append(inputs[0].shape[-1])

    student, teacher = network(), Counted()
    student.register_forward_pre_hook(noting("student"))
    teacher.register_forward_pre_hook(noting("teacher"))
    settings = Finetune(epochs=3, batch_size=128, distill=0.5, small=0.5)
    train(student, data, job(tmp_path, settings, teacher=teacher), machine, Watch())
    assert {*sides["student"]} == {4, 8}
    assert {*sides["teacher"]} == {8}


def test_a_student_in_bfloat16_keeps_the_sum_of_its_scores(data: Data, tmp_path: Path) -> None:
    """Which no loss depends on. Losses in bfloat16 pushed it further and further."""
    student, machine = network(), Machine(Recipe(threads=1, precision="bf16"))
    student.fc2.weight.requires_grad_(False)
    with torch.no_grad():
        student.fc2.bias += 77
    before = student.fc2.bias.detach().clone()
    settings = Finetune(**SHORT, distill=1.0, weight_decay=0.0)
    train(student, data, job(tmp_path, settings, teacher=network(16).eval()), machine, Watch())
    moved = student.fc2.bias.detach() - before
    assert moved.abs().sum() > 0.01
    assert moved.sum().abs() < 0.01 * moved.abs().sum()


def test_a_stop_costs_no_scores_of_finished_epochs(
    data: Data, machine: Machine, tmp_path: Path
) -> None:
    steps, teacher = data.train.steps(128), Counted()
    fine = job(tmp_path, SETTINGS["distilled-views"], teacher=teacher)
    with pytest.raises(KeyboardInterrupt):
        train(network(), data, fine, machine, Watch(2 * steps))
    train(network(), data, fine, machine, Watch())
    assert teacher.asked == 2 * steps
    file = next(tmp_path.glob("*.view-1.safetensors"))
    file.write_bytes(b"half")
    fine.checkpoint.unlink()
    with pytest.raises(RunError, match=rf"{re.escape(file.name)}' is damaged: .* Delete it to"):
        train(network(), data, fine, machine, Watch())


def test_scores_of_finished_epochs_are_on_disk_alone(data: Data, tmp_path: Path) -> None:
    """Kept in memory, they tore it into pieces: VGG16's training grew by 0.3 GB an epoch."""
    network = Counted()
    teacher = Teacher(network, Finetune(epochs=9, distill=0.5, views=2), tmp_path / "kept")
    (batch,) = list(data.train.epoch(128, seed=0, epoch=0))[:1]
    for epoch in range(4):
        teacher.guide(torch.tensor(0.0), torch.zeros(128, 10), batch, (epoch, 0))
        teacher.save(epoch)
        assert not teacher._kept
    assert network.asked == 2


def test_a_teacher_without_a_say_is_not_asked(data: Data, machine: Machine, tmp_path: Path) -> None:
    teacher, settings = Counted(), Finetune(**SHORT, distill=0.0)
    train(network(), data, job(tmp_path, settings, teacher=teacher), machine, Watch())
    assert teacher.asked == 0


def test_data_that_do_not_come_again_are_refused(data: Data, tmp_path: Path) -> None:
    """Kept scores of other images would teach nonsense, silently."""
    settings = Finetune(epochs=9, distill=0.5, views=1)
    teacher = Teacher(Counted(), settings, tmp_path / "kept")
    scores, loss = torch.zeros(128, 10), torch.tensor(0.0)
    batches = list(data.train.epoch(128, seed=0, epoch=0))[:2]
    for number, batch in enumerate(batches):
        teacher.guide(loss, scores, batch, (0, number))
    teacher.guide(loss, scores, batches[0], (1, 0))
    teacher.save(1)
    resumed = Teacher(Counted(), settings, tmp_path / "kept")
    images, labels = batches[1]
    refusal = r"finetune\.views needs .* function of seed and epoch.* or set finetune\.views = 0"
    for epoch, other in enumerate((batches[0], (images.flip(3), labels)), 2):
        for one, number in ((teacher, 0), (resumed, 1)):  # a stop may leave a part of an epoch
            with pytest.raises(DataError, match=refusal):
                one.guide(loss, scores, other if number else batches[1], (epoch, number))


def test_a_stop_is_heard_after_an_epoch_of_one_step(
    data: Data, machine: Machine, tmp_path: Path
) -> None:
    settings, watch = Dense(epochs=3, batch_size=len(data.train)), Watch(1)
    assert data.train.steps(settings.batch_size) == 1
    with pytest.raises(KeyboardInterrupt):
        train(network(), data, job(tmp_path, settings), machine, watch)
    assert [event["epoch"] for event in watch.events] == [1]


def test_a_step_with_two_gradients_counts_once(
    data: Data, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of an epoch is that of the network, not of the point Prox-SVRG refers to."""
    losses, step = [], ProxSVRG.step

    def kept(self: ProxSVRG, closure: Any) -> float | None:
        losses.append(step(self, closure))
        return losses[-1]

    monkeypatch.setattr(ProxSVRG, "step", kept)
    watch = Watch()
    settings = Explore(epochs=1, batch_size=64, optimizer="prox-svrg", lam=5e-3, prox_epochs=0.5)
    train(network(), data, job(tmp_path, settings), machine, watch)
    assert losses[-1] < 0.9 * losses[0], "it learns, so that the points differ"
    assert watch.events[0]["loss"] == pytest.approx(sum(losses) / len(losses), rel=0.01)


def test_the_time_before_a_stop_counts(data: Data, machine: Machine, tmp_path: Path) -> None:
    """An epoch that was interrupted took what its pieces took."""

    class Slow(Watch):
        """The first step takes a second; then the training stops."""

        @property
        def stopping(self) -> bool:
            time.sleep(1)
            return True

    class Clock(Watch):
        def event(self, event: dict[str, Any]) -> None:
            seconds.append(event["seconds"])

    seconds: list[float] = []
    task = job(tmp_path, Dense(epochs=2, batch_size=512))
    with pytest.raises(KeyboardInterrupt):
        train(network(), data, task, machine, Slow())
    train(network(), data, task, machine, Clock())
    assert seconds[0] > 1 + seconds[1] / 2


def test_a_baseline_learns_the_digits(data: Data, machine: Machine, tmp_path: Path) -> None:
    model, watch = network(), Watch()
    train(model, data, job(tmp_path, Dense(epochs=6)), machine, watch)
    assert watch.events[-1]["validation_accuracy"] == accuracy(model, data.validation, machine)
    assert accuracy(model, data.test, machine) > 0.95


def test_exploring_makes_zeros_and_ends_in_an_orthant_phase(
    data: Data, machine: Machine, tmp_path: Path
) -> None:
    model, watch = network(), Watch()
    train(model, data, job(tmp_path, Explore(epochs=8, lam=3e-3)), machine, watch)
    last = watch.events[-1]
    assert last["phase"] == "orthant"
    assert last["sparsity"] > 0.5
    assert set(last["layers"]) == {n for n, p in model.named_parameters() if p.dim() > 1}


def test_half_space_exploring_zeroes_whole_units(
    data: Data, machine: Machine, tmp_path: Path
) -> None:
    """With the units of the model as groups, what HSPG leaves can be cut without a change."""
    model = network()
    example = torch.zeros(1, *data.input_shape)
    units = unit_slots(model, rsprune.trace(model, example))
    settings = Explore(epochs=8, optimizer="hspg", lam=0.02, prox_epochs=2, half_space=0.3)
    train(model, data, job(tmp_path, settings, units=units), machine, Watch())
    slim = rsprune.compress(model, example, mode="zero-groups")
    assert rsprune.profile(slim, example).macs < rsprune.profile(model, example).macs
    images, _ = next(data.test.in_order(64))
    torch.testing.assert_close(slim.eval()(images), model.eval()(images), rtol=0, atol=1e-4)


def test_a_loss_that_explodes_is_reported(data: Data, machine: Machine, tmp_path: Path) -> None:
    settings = Dense(epochs=3, lr=1e6, momentum=0.99)
    with pytest.raises(DivergenceError, match=r"baseline\.lr .*clip"):
        train(network(), data, job(tmp_path, settings), machine, Watch())


def test_a_checkpoint_of_another_job_is_refused(
    data: Data, machine: Machine, tmp_path: Path
) -> None:
    train(network(), data, job(tmp_path, Dense(**SHORT)), machine, Watch())
    with pytest.raises(RunError, match="another training"):
        train(network(), data, job(tmp_path, Explore(**SHORT, lam=0.05)), machine, Watch())


def test_a_damaged_checkpoint_is_reported(data: Data, machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(RunError, match=r"damaged.*Delete it"):
        train(network(), data, job(tmp_path, Dense(**SHORT)), machine, Watch())


@pytest.mark.parametrize("way", ["channels_last", pytest.param("winograd", marks=compiled)])
def test_another_way_to_compute_trains_to_the_same_accuracy(
    way: str, data: Data, tmp_path: Path
) -> None:
    found = []
    for keys in ({}, {way: True}):
        machine, model = Machine(Recipe(threads=1, device="cpu", **keys)), network(width=40)
        directory = tmp_path / f"keys-{len(keys)}"
        directory.mkdir()
        train(model, data, job(directory, Dense(epochs=3)), machine, Watch())
        found.append(model)
    usual, other = found
    assert other.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(usual.conv2.weight, other.conv2.weight)  # the sums are rounded otherwise
    accuracies = [accuracy(model, data.test, machine) for model in found]
    assert min(accuracies) > 0.9
    assert abs(accuracies[0] - accuracies[1]) < 0.03
