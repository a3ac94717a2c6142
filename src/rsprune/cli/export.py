"""``rsprune export``: a compressed model as a file for other runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rsprune.checks import check_choice
from rsprune.cli.exportable import of_file, of_run
from rsprune.cli.settings import Subject, parse_settings
from rsprune.errors import RecipeError
from rsprune.exporting import FORMATS, Exported
from rsprune.exporting.api import check_target

_INT8 = ".int8.onnx"


def export(
    settings: Subject = None,
    model: Annotated[str | None, typer.Option(help="The model of a file.")] = None,
    data: Annotated[
        str | None, typer.Option(help="The data of a file's model; default: those of the run.")
    ] = None,
    input: Annotated[
        str, typer.Option(metavar="SIZES", help="One input of a file's model, e.g. 3x32x32.")
    ] = "",
    format: Annotated[
        str | None,
        typer.Option(help="onnx, pt2 or safetensors; default: what --out ends in, or onnx."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; default: beside the weights.")
    ] = None,
    fold: Annotated[
        bool, typer.Option("--fold", help="Fold batch norms into the layers before them.")
    ] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="Also write the ONNX file quantised to 8 bits.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Export a compressed model to ONNX, torch.export (pt2) or safetensors.

    The file is run and compared with the model, on test images where there
    are data; if they differ, nothing is written. With --int8 there is a
    second file, model.int8.onnx, calibrated with training images, and the
    test accuracy before and after quantisation is measured.

    [bold]Examples[/bold]

      rsprune export runs/small_cnn-digits

      rsprune export runs/small_cnn-digits --int8

      rsprune export runs/small_cnn-digits --fold --out slim.pt2

      rsprune export slim.safetensors --model my_package.nets:MyNet --input 1x28x28

      rsprune export slim.safetensors --model vgg16 --data cifar10 --int8 --force
    """
    target, options = parse_settings(settings or [])
    options |= {k: v for k, v in {"model": model, "data": data}.items() if v is not None}
    if target is None:
        raise RecipeError(["Name a run directory or a file of weights: rsprune export DIR"])
    path, kind = _place(target, out, format, int8=int8)
    if int8 and kind != "onnx":
        raise RecipeError([f"--int8: onnxruntime quantises ONNX files alone, not {kind}."])
    own = target.is_dir() and out is None  # which the run itself may have written
    stays = int8 and own and path.is_file() and not force
    for one in [*([] if stays else [path]), *([_quantised(path)] if int8 else [])]:
        check_target(one, force)
    if target.is_dir() and input:
        raise RecipeError(["--input: the run knows its inputs; leave it out."])
    if target.is_dir():
        subject = of_run(target, options, calibrated=int8)
    else:
        subject = of_file(target, options, input)
    small = subject.quantise(_quantised(path), force=force) if int8 else None
    plain = None if stays else subject.export(path, kind, fold=fold, force=force)
    written = [done for done in (plain, small) if done is not None]
    if as_json:
        facts = {"inputs": subject.inputs, "files": [_facts(done) for done in written]}
        facts |= {"stays": str(path)} if stays else {}
        typer.echo(json.dumps(facts, indent=2))
        return
    for done in written:
        typer.echo(f"{done}; compared on {subject.inputs}")
    if stays:
        typer.echo(f"{path}: exists already, and stays as it is")


def _place(target: Path, out: Path | None, format: str | None, *, int8: bool) -> tuple[Path, str]:
    """The file to write, and its format; with ``int8``, the plain one of two."""
    kind = format or ("onnx" if out is None else out.suffix.removeprefix("."))
    if format is None and kind not in FORMATS:
        raise RecipeError([f"--out: '{out}' does not say which format it is; add --format onnx."])
    check_choice("rsprune export", "--format", kind, FORMATS)
    if out is not None:
        second = int8 and out.name.endswith(_INT8)
        return out.with_name(f"{out.name.removesuffix(_INT8)}.onnx") if second else out, kind
    if kind == "safetensors":
        raise RecipeError(
            ["--out: name the file; the usual name is that of the weights themselves."]
        )
    return target / f"model.{kind}" if target.is_dir() else target.with_suffix(f".{kind}"), kind


def _quantised(path: Path) -> Path:
    """The file in 8 bits beside an ONNX file."""
    return path.with_suffix(_INT8)


def _facts(done: Exported) -> dict[str, Any]:
    """A file, for programs."""
    found: dict[str, Any] = {
        "path": str(done.path),
        "format": done.format,
        "bytes": done.size,
        "difference": done.difference,
        "batches": list(done.batches),
        "folded": done.folded,
    }
    if done.agreement is not None:
        found["agreement"] = done.agreement
    if done.accuracy is not None:
        found["test_accuracy"] = dict(zip(("before", "after"), done.accuracy, strict=True))
    return found
