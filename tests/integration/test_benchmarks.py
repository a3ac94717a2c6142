"""The benchmarks that train: equal budgets, cells that go on, and fair cuts, on a tiny network."""

from __future__ import annotations

import argparse
import copy
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import rsprune
from benchmarks import ablation, cells, frontier, subset
from rsprune.data import load
from rsprune.engine.directory import begin
from rsprune.engine.run import Run
from rsprune.errors import InvalidParameterError
from rsprune.models.cifar_resnet import BasicBlock
from tests.cifar10 import write_cifar10

pytestmark = pytest.mark.filterwarnings("ignore::rsprune.errors.RsPruneWarning")
HERE = __name__
EPOCHS = 7  # of every cell
TARGET = 0.6


class Tiny(nn.Module):
    """Two residual blocks, the second with a shortcut that pads channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.one = BasicBlock(8, 16, 2)
        self.two = BasicBlock(16, 32, 2)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.two(self.one(self.stem(x))).mean((2, 3)))
        return out


def images() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Four classes of different brightness."""
    numbers = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 100, (240, 3, 16, 16), generator=numbers, dtype=torch.uint8)
    labels = torch.arange(240) % 4
    shades = noise + (50 * labels).to(torch.uint8)[:, None, None, None]
    return (shades[:160], labels[:160]), (shades[160:], labels[160:])


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a benchmark that takes seconds."""
    torch.manual_seed(0)
    weights = tmp_path_factory.mktemp("weights") / "tiny.pt"
    torch.save(Tiny().state_dict(), weights)
    keys = {
        "weights": weights, "model": f"{HERE}:Tiny", "data": f"{HERE}:images", "threads": 1,
        "compress.target_macs": TARGET, "explore.epochs": 6, "explore.batch_size": 64,
        "finetune.epochs": EPOCHS - 6, "finetune.batch_size": 64, "device": "cpu",
    }  # fmt: skip
    return [word for key, value in keys.items() for word in (f"--{key}", str(value))]


class Watch:
    """Hears of a training, and stops it after some steps."""

    def __init__(self, stop: int) -> None:
        self.left = stop

    def event(self, event: dict[str, Any]) -> None:
        pass

    def step(self, *_: object) -> None:
        pass

    @property
    def stopping(self) -> bool:
        self.left -= 1
        return self.left < 0


def table(text: str) -> dict[str, list[str]]:
    """The rows of the printed table by their first cell."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in lines[1:]}


def epochs(directory: Path) -> list[tuple[str, float]]:
    """The stage and the loss of every epoch."""
    events = cells.EventLog(directory / "events.jsonl").events
    return [(e["stage"], e["loss"]) for e in events if e["event"] == "epoch"]


def base(command: list[str], module: Any, *more: str) -> Any:
    options, rest = cells.make_parser(None, "runs", 0).parse_known_args([*command, *more])
    return cells.base_recipe(options, rest, module.BASE)


def test_every_change_has_the_budget_of_the_base(command: list[str]) -> None:
    """The same epochs in all; what repeats the base is its cell; the shares are what they say."""
    found = ablation.rows(base(command, ablation))
    for name, recipe in found.values():
        total = recipe.recursion.rounds * recipe.explore.epochs + recipe.finetune.epochs
        assert total == EPOCHS, name
    same = {row for row, (name, _) in found.items() if name == "base"}
    assert same == {
        "base", "lambda-0.001", "rounds-1", "select-magnitude", "weights-inherited",
        "optimizer-obprox-sg", "prox-share-50", "explore-lr-0.02", "finetune-lr-0.01",
        "distillation-on", "unit-block", "spread-even",
    }  # fmt: skip
    assert len({name for name, _ in found.values()}) == 30
    assert found["epsilon-0.3-alone"][1].explore.lam == 5e-3
    assert found["distillation-0.9"][1].finetune.distill == 0.9
    assert found["prox-share-75"][1].explore.prox_epochs == 4.5
    assert found["rounds-3"][1].explore.prox_epochs == 1
    assert found["optimizer-hspg"][1].explore.lam == 0.02
    assert found["optimizer-hspg-zero-groups"][1].explore.lam == 0.07
    assert found["optimizer-hspg-zero-groups"][1].compress.target_macs is None
    other = ablation.rows(base(command, ablation, "--compress.select", "thinet"))
    assert other["select-thinet"][0] == "base"
    assert other["select-magnitude"][0] == "select-magnitude"
    views = ablation.rows(base(command, ablation, "--finetune.views", "2"))
    assert views["distillation-off"][1].finetune.views == 0
    by_cost = ablation.rows(base(command, ablation, "--compress.spread", "cost"))
    even = {row for row, (_, recipe) in by_cost.items() if recipe.compress.spread == "even"}
    assert {"rounds-2", "rounds-3", "epsilon-0.1-alone", "spread-even"} <= even
    assert by_cost["rounds-1"][0] == "base"


def test_a_change_that_does_not_fit_the_base_is_told(command: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"with compress\.spread: .* without target_params"):
        ablation.main([*command, "--compress.target_params", "0.5"])


def test_every_method_has_the_epochs_of_all_rounds(command: list[str]) -> None:
    recipe = base(command, frontier, "--recursion.rounds", "2", "--compress.spread", "even")
    options = argparse.Namespace(tp_reg=5e-4, tp_lr=0.01, scratch_lr=0.1)
    found = {name: frontier.recipe_for(name, recipe, options) for name in frontier.METHODS}
    assert found["tp-sparse"].explore.epochs == 12
    assert found["tp-sparse"].finetune == recipe.finetune
    for name in ("tp-group-norm", "uniform-l1", "cost-l1", "scratch"):
        assert found[name].finetune.epochs == 13


def test_epochs_that_rounds_cannot_share_are_refused(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"explore\.epochs.*divisible by 3.*8"):
        ablation.main([*command, "--explore.epochs", "8"])
    assert not capsys.readouterr().out


def test_an_ablation_goes_on_and_prints_what_is_finished(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was stopped is completed, what is finished is read; the table needs no training."""
    out = ["--out", str(tmp_path), "--only", "base", "select-[mr]*"]
    ablation.main([*command, *out, "--table"])
    assert table(capsys.readouterr().out)["base"][0] == "not run"
    directory = tmp_path / "base" / "seed-0"
    begin(base(command, ablation), directory)
    with pytest.raises(KeyboardInterrupt):
        ablation.execute(directory, Watch(stop=5))
    ablation.main([*command, *out])
    first = table(capsys.readouterr().out)
    assert list(first) == ["base", "select-magnitude (= base)", "select-random"]
    assert first["base"] == first["select-magnitude (= base)"]
    assert 1 / TARGET <= float(first["base"][3].rstrip("x")) < 2
    assert len(epochs(directory)) == EPOCHS
    ablation.main([*command, *out, "--table"])
    assert table(capsys.readouterr().out) == first
    with pytest.raises(SystemExit, match=r"other settings: explore\.lam was 0\.001 and is 0\.002"):
        ablation.main([*command, *out, "--explore.lam", "2e-3", "--table"])
    with pytest.raises(SystemExit, match=r"only.*lambda-0\.0005.*'selct"):
        ablation.main([*command, *out, "selct*"])


def test_a_cell_that_diverges_is_told_and_stops_no_other(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A peer's as well as rsprune's own, which then gives the given network back."""
    options = [*command, "--out", str(tmp_path), "--only", "rsprune", "uniform-l1"]
    options += ["--explore.lr", "1e30", "--finetune.lr", "1e30"]
    frontier.main(options)
    found = table(capsys.readouterr().out)
    assert [row[0] for row in found.values()] == ["diverged", "diverged"]
    frontier.main(options)  # and it is not tried again
    said = capsys.readouterr().out
    assert "Diverged" not in said
    assert table(said) == found


def test_fine_tuning_that_diverges_is_no_result(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine then hands over the network as it was cut: that is no figure to compare."""
    frontier.main([*command, "--out", str(tmp_path), "--only", "rsprune", "--finetune.lr", "1e30"])
    assert table(capsys.readouterr().out)["rsprune"][0] == "diverged"


def test_a_cell_that_cuts_nothing_is_a_result(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*command, "--out", str(tmp_path), "--only", "epsilon-0.3-alone"]
    ablation.main([*options, "--explore.lam", "1e-9"])
    assert table(capsys.readouterr().out)["epsilon-0.3-alone"][3] == "1.00x"


def test_keys_mean_what_they_mean_to_a_run(command: list[str], tmp_path: Path) -> None:
    """With hyphens too; what a run decides by itself is no other setting when it goes on."""
    assert base(command, ablation, "--explore.prox-epochs", "1").explore.prox_epochs == 1
    recipe = base(command, ablation, "--threads", "none", "--baseline.epochs", "5")
    cell = cells.Cell("base", recipe, tmp_path / "cell")
    begin(recipe, cell.directory)
    cell.log.append({"event": "start"})
    cell.check()


def test_a_mistake_leaves_nothing_in_the_way(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*command, "--out", str(tmp_path), "--only", "base", "--explore.lam", "1e-9"]
    with pytest.raises(SystemExit, match="There is no file"):
        ablation.main([*options, "--weights", "nope.pt"])
    ablation.main(options)
    assert table(capsys.readouterr().out)["base"][0].endswith("%")


def test_what_cannot_be_compared_is_refused_before_training(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*command, "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match=r"compress\.unit.*auto or block.*layer"):
        frontier.main([*options, "--only", "rsprune", "--compress.unit", "layer"])
    with pytest.raises(SystemExit, match=r"compress\.target_macs.*a share"):
        frontier.main([*options, "--compress.target_macs", "none", "--compress.spread", "even"])
    with pytest.raises(SystemExit, match=r"compress\.round_to.*left out"):
        frontier.main([*options, "--compress.round_to", "8"])
    with pytest.raises(SystemExit, match=r"finetune\.views.*fewer different crops"):
        frontier.main([*options, "--finetune.views", "1"])
    with pytest.raises(SystemExit, match=r"weights.*Every cell starts from them"):
        frontier.main([*options, "--weights", "none"])
    with pytest.raises(SystemExit, match=r"seeds.*at least 1"):
        frontier.main([*options, "--seeds", "0"])
    monkeypatch.setattr(frontier, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="pip install torch-pruning"):
        frontier.main(options)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_pruning")
    monkeypatch.setattr(frontier, "STEPS", 40)  # a tenth


@pytest.mark.usefixtures("_few_steps")
def test_all_methods_have_the_same_epochs_and_meet_the_target(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that was stopped in its second stage, which ends as without."""
    options = [*command, "--out", str(tmp_path)]
    recipe = frontier.recipe_for(
        "tp-sparse",
        base(command, frontier),
        argparse.Namespace(tp_reg=5e-4, tp_lr=0.01),
    )
    stopped = cells.Cell("tp-sparse", recipe, tmp_path / "tp-sparse" / "seed-0")
    begin(recipe, stopped.directory)
    with pytest.raises(KeyboardInterrupt):  # after the first of two steps, and after the epoch
        frontier.work(stopped, Watch(stop=12))
    assert [stage for stage, _ in epochs(stopped.directory)] == ["explore"] * 6
    frontier.main(options)
    found = table(capsys.readouterr().out)
    assert list(found) == list(frontier.METHODS)
    for method, row in found.items():
        assert 1 / TARGET <= float(row[0].rstrip("x")) < 2, method
        assert len(epochs(tmp_path / method / "seed-0")) == EPOCHS, method
    whole = cells.Cell("tp-sparse", recipe, tmp_path / "whole" / "seed-0")
    begin(recipe, whole.directory)
    frontier.work(whole, Watch(stop=10_000))
    assert epochs(stopped.directory) == epochs(whole.directory)
    shutil.rmtree(tmp_path / "scratch")  # which takes its widths from rsprune's cell
    with pytest.raises(SystemExit, match=r"rsprune.*compress\.target_macs was 0\.6 and is 0\.5"):
        frontier.main([*options, "--only", "scratch", "--compress.target_macs", "0.5"])
    frontier.main([*options, "--only", "rsprune", "--seeds", "2", "--table"])
    assert list(table(capsys.readouterr().out)) == ["rsprune (1 of 2 seeds)"]


def full(command: list[str], directory: Path, *more: str) -> Run:
    """A run with its full network in place."""
    begin(base(command, frontier, *more), directory)
    found = Run(directory, Watch(stop=10_000))
    found.baseline()
    return found


@pytest.mark.usefixtures("_few_steps")
def test_the_peers_penalty_acts_in_every_step(command: list[str], tmp_path: Path) -> None:
    """The larger it is, the smaller the filters that its sparse learning leaves."""
    norms = []
    for lam in ("1e-9", "3"):
        keys = ("--explore.lam", lam, "--explore.epochs", "1", "--explore.lr", "0.01")
        slim = frontier.tp_sparse(full(command, tmp_path / lam, *keys))
        norms.append(slim.get_parameter("two.conv1.weight").square().mean().item())
    assert norms[1] < 0.9 * norms[0]


@pytest.mark.usefixtures("_few_steps")
def test_the_peers_cut_equals_the_zeroed_network(command: list[str], tmp_path: Path) -> None:
    """With inner widths alone; what its graph makes of the padded shortcuts is left out."""
    run = full(command, tmp_path / "run")
    slim, zeroed = frontier.tp_group_norm(run), copy.deepcopy(run.model)
    cut = 0
    for name, module in slim.named_modules():
        if not name.endswith("conv1"):
            continue
        layer: Any = zeroed.get_submodule(name)
        gone = [
            unit
            for unit, own in enumerate(layer.weight)
            if not any(torch.equal(own, kept) for kept in cast(Tensor, module.weight))
        ]
        norm: Any = zeroed.get_submodule(name.replace("conv1", "bn1"))
        with torch.no_grad():
            for tensor in (layer.weight, norm.weight, norm.bias):
                tensor[gone] = 0
        cut += len(gone)
    assert cut > 10
    x = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(slim.eval()(x), zeroed.eval()(x))


def test_the_peer_misplaces_padded_shortcuts() -> None:
    """Why the stream is left out: dropping a channel of it is not the same as zeroing it.

    If this fails, Torch-Pruning has learnt to pad, and may cut the residual stream as well.
    """
    tp = pytest.importorskip("torch_pruning")
    torch.manual_seed(0)
    slim, x = Tiny().eval(), torch.randn(4, 3, 16, 16)
    zeroed = copy.deepcopy(slim)
    for name, parameter in zeroed.named_parameters():
        if name.split(".")[-2] in ("stem", "conv2", "bn2"):  # what writes the stream
            parameter.data[1] = 0  # where every shortcut pads
    graph = tp.DependencyGraph().build_dependency(slim, x)
    graph.get_pruning_group(slim.stem, tp.prune_conv_out_channels, idxs=[1]).prune()
    widths = [module.out_channels for module in slim.modules() if isinstance(module, nn.Conv2d)]
    assert widths == [7, 16, 15, 32, 31]
    assert not torch.allclose(slim(x), zeroed(x), rtol=0.01)


def test_uniform_widths_keep_the_largest_filters(command: list[str], tmp_path: Path) -> None:
    run = full(command, tmp_path / "run")
    slim = frontier.uniform_l1(run)
    shares = []
    for name, layer in run.model.named_modules():
        if name.endswith("conv1"):
            kept, weight = slim.get_parameter(f"{name}.weight"), layer.get_parameter("weight")
            norms = weight.abs().flatten(1).sum(1).sort(descending=True).values
            own = kept.abs().flatten(1).sum(1).sort(descending=True).values
            torch.testing.assert_close(own, norms[: len(kept)])
            shares.append(len(kept) / len(weight))
    assert max(shares) - min(shares) <= 1 / 16  # one unit of the narrowest
    assert (
        rsprune.profile(slim, run.example).macs
        <= TARGET * rsprune.profile(run.model, run.example).macs
    )


def test_a_subset_is_drawn_of_every_class_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Always the same images, and all test images; a number that cannot be is refused."""
    write_cifar10(tmp_path)
    monkeypatch.setenv("RSPRUNE_DATA", str(tmp_path))
    for count in (30, 70):
        (some, labels), (_, tested) = getattr(subset, f"cifar10_{count}")()
        assert torch.bincount(labels).tolist() == [count // 10] * 10
        assert len(tested) == 100
        assert torch.equal(some, getattr(subset, f"cifar10_{count}")()[0][0])
    data = load("benchmarks.subset:cifar10_100", normalise="imagenet", augment="crop-flip")
    assert data.sizes == {"train": 90, "validation": 10, "test": 100}
    with pytest.raises(InvalidParameterError, match=r"images.*\[10, 90\], or 100.*101"):
        subset.cifar10_101()
    with pytest.raises(AttributeError, match="cifar10_12500"):
        _ = subset.cifar100
