"""The recipe of ResNet50 on ImageNet, whole, on an image folder made for the purpose.

1,000 classes as in ImageNet, but small pictures and few of them; batches, epochs and images are
smaller than in the recipe, and a CPU stands in for the GPUs. The ONNX file, which takes a quarter
of a minute, has tests of its own.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rsprune
from rsprune.models import ResNet
from tests.commands import CLI, ENVIRONMENT, command, events

pytest.importorskip("PIL")

from PIL import Image

RECIPE = Path(__file__).parents[2] / "recipes" / "resnet50-imagenet.toml"
SMALLER = (
    "--loading.size=16", "--explore.batch_size=250", "--finetune.batch_size=250",
    "--explore.epochs=1", "--finetune.epochs=1", "--precision=no", "--device=cpu", "--threads=1",
    "--onnx=false",
)  # fmt: skip
CLASSES, TWICE, TESTS = 1000, 50, 60


def picture(width: int, height: int, mode: str) -> bytes:
    """A JPEG file of this size and mode."""
    colours = np.random.default_rng(width).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).resize((width, height)).convert(mode).save(file, "JPEG")
    return file.getvalue()


def write_folder(root: Path) -> None:
    """A picture of every class, two of some; a few for testing. Wide, upright, grey, printed."""
    kinds = [(40, 30, "RGB"), (24, 50, "RGB"), (33, 33, "L"), (20, 21, "CMYK"), (90, 17, "RGB")]
    pictures = [picture(*kind) for kind in kinds]
    for number in range(CLASSES):
        name = f"n{number:08d}"
        counts = {"train": 1 + (number < TWICE), "val": int(number < TESTS)}
        for part, count in counts.items():
            for i in range(count):
                file = root / part / name / f"{name}_{i}.JPEG"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(pictures[(number + i) % len(pictures)])


def write_weights(path: Path) -> None:
    """A file as torchvision's: parameters in the old format, and no counts of batches."""
    torch.manual_seed(1)
    state = ResNet(50).state_dict(keep_vars=True)
    trained = {name: value for name, value in state.items() if "num_batches" not in name}
    torch.save(trained, path, _use_new_zipfile_serialization=False)


def found(directory: Path, kind: str, stage: str | None = None) -> list[dict[str, Any]]:
    """The events of a kind, of a stage."""
    return [e for e in events(directory) if (e["event"], e.get("stage")) == (kind, stage)]


def killed_in_finetuning(*arguments: str, directory: Path) -> None:
    """``rsprune compress`` with kill -9 as soon as fine-tuning begins."""
    process = subprocess.Popen(
        [*CLI, "compress", *arguments, "--out", str(directory)],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    while not found(directory, "stage", "finetune"):
        if process.poll() is not None:
            pytest.fail(f"the run ended early: {process.communicate()[0]}")
        time.sleep(0.05)
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of the finished run, which is large; the file of weights beside it."""
    root = tmp_path_factory.mktemp("imagenet")
    write_folder(root / "data")
    write_weights(root / "resnet50.pth")
    killed_in_finetuning(
        str(RECIPE), "--data", f"imagefolder:{root / 'data'}",
        "--weights", str(root / "resnet50.pth"), *SMALLER, directory=root / "run",
    )  # fmt: skip
    done = command("compress", "--resume", str(root / "run"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["event"] == "finish"
    yield root / "run"
    shutil.rmtree(root)


def test_the_stages_are_the_recipes(run: Path) -> None:
    """No baseline, for there are weights; one round; He's learning rates; nothing twice."""
    (start,) = found(run, "start")
    assert start["classes"] == CLASSES
    assert start["sizes"] == {"train": CLASSES + 8, "validation": 42, "test": TESTS}
    assert not found(run, "stage", "baseline")
    (explore,), (sparse,) = (found(run, kind, "explore") for kind in ("stage", "epoch"))
    assert explore["lam"] == 1e-5
    assert sparse["phase"] == "orthant"
    assert sparse["sparsity"] > 0
    (tuned,) = found(run, "epoch", "finetune")
    assert [sparse["lr"], tuned["lr"]] == pytest.approx([0.001, 0.001])  # 0.1, decayed twice
    assert found(run, "finish")[0]["stopped"] == "1 round was asked for"


def test_the_run_begins_with_the_given_weights(run: Path) -> None:
    given = torch.load(run.parent / "resnet50.pth", weights_only=True)
    start = rsprune.load(ResNet(50), run / "state" / "baseline.safetensors").state_dict()
    assert all(torch.equal(start[name], value) for name, value in given.items())


def test_inner_widths_shrink_to_the_target_and_blocks_keep_their_outputs(run: Path) -> None:
    (cut,) = found(run, "round")
    for width in cut["widths"]:
        block, _, layer = width["group"].rpartition(".")
        if block and layer in ("conv1", "conv2"):
            assert width["driver"] == f"block {block}"
            assert width["to"] < width["from"]
        else:
            assert (width["driver"], width["to"]) == ("blocks share it", width["from"])
    assert 0.98 * 0.3448 <= cut["after"]["macs"] / cut["before"]["macs"] <= 0.3448


def test_the_result_is_an_ordinary_resnet50(run: Path) -> None:
    """It loads, its blocks are outside as wide as before, and it takes ImageNet's images."""
    full = ResNet(50)
    slim = rsprune.load(full, run / "model.safetensors").eval()
    (finish,) = found(run, "finish")
    assert rsprune.profile(slim, torch.zeros(1, 3, 16, 16)).macs == finish["after"]["macs"]
    for name, module in slim.named_modules():
        if name.endswith((".conv3", ".downsample.0")):
            assert module.out_channels == full.get_submodule(name).out_channels
    with torch.no_grad():
        assert slim(torch.zeros(1, 3, 224, 224)).shape == (1, CLASSES)


def test_both_accuracies_are_reported(run: Path) -> None:
    (finish,) = found(run, "finish")
    for side in ("before", "after"):
        assert 0 <= finish[side]["test_accuracy"] <= finish[side]["test_top5"] <= 1
    assert "top-5" in (run / "report.md").read_text()


def test_one_penalty_of_the_search_takes_a_process(run: Path) -> None:
    """As docs/imagenet.md has it, one for every GPU."""
    root = run.parent
    done = command(
        "search-lambda", str(RECIPE), "--powers", "1e-3", "--data", f"imagefolder:{root / 'data'}",
        "--weights", str(root / "resnet50.pth"), *SMALLER, "--out", str(root / "search"), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (tried,) = json.loads(done.stdout)["tried"]
    assert (tried["lam"], tried["epochs"]) == (1e-3, 1)
    assert tried["macs"] < 1
