"""``rsprune export``: a compressed model as an ONNX file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

import rsprune
from rsprune.cli.sizes import parse_sizes
from rsprune.engine.directory import recipe_of
from rsprune.engine.network import build_network
from rsprune.errors import InvalidParameterError, RunError
from rsprune.export import Exported, export_onnx
from rsprune.models import build, input_shape
from rsprune.report.read import read_run
from rsprune.report.run import Run

_OWNER = "rsprune export"
_REMEDY = "E.g. --input 3x224x224, without the batch."
_BATCH = 2  # images on which file and model are compared first


def export(
    target: Annotated[
        Path, typer.Argument(metavar="DIR|FILE", help="A run directory, or a file of weights.")
    ],
    model: Annotated[str | None, typer.Option(help="The model, if TARGET is a file.")] = None,
    input: Annotated[
        str, typer.Option(metavar="SIZES", help="One input of a file's model, e.g. 3x32x32.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="The file to write; default: model.onnx beside TARGET.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a line.")] = False,
) -> None:
    """Export a compressed model to ONNX, for batches of any size.

    The file is run by onnxruntime and compared with the model; if they differ, nothing is written.

    [bold]Examples[/bold]

      rsprune export runs/small_cnn-digits

      rsprune export slim.safetensors --model vgg16 --out slim.onnx

      rsprune export slim.safetensors --model my_package.nets:MyNet --input 1x28x28
    """
    if target.is_dir():
        _refuse_for_runs(model, input)
        done = export_run(target, out or target / "model.onnx", force=force)
    else:
        slim, shape, texts = _of_file(target, model, input)
        path = out or target.with_suffix(".onnx")
        done = export_onnx(slim, _example(shape), path, force=force, metadata=texts)
    typer.echo(_json(done) if as_json else _line(done))


def export_run(directory: Path, path: Path, *, force: bool = True) -> Exported:
    """Export the model of a finished run.

    Args:
        directory: of the run.
        path: the file to write.
        force: replace a file that exists; what the run itself wrote before, it may replace.
    """
    slim, shape, texts = _of_run(directory)
    return export_onnx(slim, _example(shape), path, force=force, metadata=texts)


Loaded = tuple[nn.Module, tuple[int, ...], dict[str, str]]


def _of_run(directory: Path) -> Loaded:
    """The model of a run, the shape of one input, and what the file is to say about itself."""
    recipe, run = recipe_of(directory), read_run(directory)
    file = directory / "model.safetensors"
    if not file.exists():
        raise RunError(
            f"'{directory}' has no model.safetensors: the run is not finished. Go on with it: "
            f"rsprune compress --resume {directory}"
        )
    if run.start.classes is None:
        raise RunError(f"'{directory / 'events.jsonl'}' does not say how many classes there are.")
    full = build_network(recipe, run.start.classes, run.start.input_shape)
    return rsprune.load(full, file), run.start.input_shape, _texts(run)


def _of_file(file: Path, model: str | None, sizes: str) -> Loaded:
    if model is None:
        raise InvalidParameterError(
            _OWNER, "--model", "given with a file", "none",
            "A file holds weights, not code: name the model, e.g. --model vgg16.",
        )  # fmt: skip
    shape = parse_sizes(_OWNER, sizes, _REMEDY) if sizes else input_shape(model)
    return rsprune.load(build(model), file), shape, {"model": model}


def _refuse_for_runs(model: str | None, sizes: str) -> None:
    for name, value in (("--model", model), ("--input", sizes)):
        if value:
            raise InvalidParameterError(
                _OWNER, name, "left out for a run directory", value, "The run knows it."
            )


def _texts(run: Run) -> dict[str, str]:
    texts = {"model": run.start.model, "data": run.start.data}
    if run.finish is not None:
        after = run.finish.after
        found = {
            "macs": after.cost.macs,
            "weights": after.cost.weights,
            "params": after.cost.params,
            "validation_accuracy": after.validation_accuracy,
            "test_accuracy": after.test_accuracy,
        }
        texts |= {name: json.dumps(value) for name, value in found.items()}
    return texts


def _example(shape: tuple[int, ...]) -> Tensor:
    """Inputs that are the same in every run."""
    return torch.randn(_BATCH, *shape, generator=torch.Generator().manual_seed(0))


def _line(done: Exported) -> str:
    size = f"{done.size / 1e6:.2f} MB" if done.size >= 1e6 else f"{done.size / 1e3:.1f} kB"
    return f"{done.path}: {size}, outputs equal to {done.difference:.1e} in onnxruntime"


def _json(done: Exported) -> str:
    found = {
        "path": str(done.path),
        "bytes": done.size,
        "difference": done.difference,
        "batches": list(done.batches),
    }
    return json.dumps(found, indent=2)
